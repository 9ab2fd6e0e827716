#!/usr/bin/env python3
"""browser_test.py BIN_DIR: reports of real runs in a headless Chromium, at desktop and phone width, light and dark.

Exit status 77, with a sentence, where Chromium is missing. CIFAR_MPI_PICTURES: a folder for screenshots to look at.
"""
import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(root, "tools"))
sys.dont_write_bytecode = True
import devtools  # noqa: E402
import files  # noqa: E402
import report_svg  # noqa: E402
import study_numbers  # noqa: E402
import study_page  # noqa: E402

failures = []


def expect(right, what):
    if not right:
        failures.append(what)
        print("FAILED:", what)


def command(*words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}: {done.stdout}")


def make_runs(programs, folder):
    """Two small runs, the first of them resumed, and a page of the first and of both."""
    data = os.path.join(folder, "d.h5")
    command(f"{programs}/cifar_mpi_pack", "--synthetic", "300", "--out", data)
    for run, steps in ("first", "30"), ("first", "60"), ("second", "40"):
        command(f"{programs}/cifar_mpi_train", "--data", data, "--run-dir", os.path.join(folder, run), "--batch-size", "8", "--steps", steps,
                "--eval-every", "0.5", "--log-every", "1", "--threads", "1")
    with open(os.path.join(folder, "second", "metrics.jsonl"), "a", encoding="utf-8") as file:
        file.write("</script><b>torn")
    runs = [os.path.join(folder, "first"), os.path.join(folder, "second")]
    command(f"{programs}/cifar_mpi_report", runs[0])
    command(f"{programs}/cifar_mpi_report", *runs, "--html", os.path.join(folder, "both.html"))
    return [os.path.join(runs[0], "report.html"), os.path.join(folder, "both.html")]


def check_structure(page, where, width):
    """The needs of screen readers and narrow screens."""
    expect(page.run("document.documentElement.lang") == "en" and page.run("document.title") != "", where + "language and title")
    # a phone's browser widens its window to the page
    expect(page.run("Math.max(innerWidth, document.documentElement.scrollWidth)") <= width, where + "the page scrolls sideways")
    wide = page.run(f"""[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') && e.getClientRects().length &&
        e.getBoundingClientRect().right > {width} + 1 && !e.closest('svg')).map(e => e.outerHTML.slice(0, 80))""")
    expect(not wide, where + f"wider than the screen: {wide[:3]}")
    expect(page.run("[...document.images].every(i => i.hasAttribute('alt') && i.complete && i.naturalWidth > 0)"), where + "pictures load and have alt")
    expect(page.run("[...document.querySelectorAll('svg')].every(s => s.getAttribute('aria-hidden') === 'true' || "
                    "(s.getAttribute('role') === 'img' && s.getAttribute('aria-label').length > 40))"), where + "every drawing has its words")
    expect(page.run("[...document.querySelectorAll('[role=img], [role=region], [role=group]')].every(e => e.getAttribute('aria-label'))"),
           where + "roles have names")
    expect(page.run("[...document.querySelectorAll('.scroll')].every(s => s.tabIndex === 0)"), where + "what scrolls takes the keyboard")
    expect(page.run("""[...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1]).every((n, i, all) => i === 0 ? n === 1 : n <= all[i - 1] + 1)"""),
           where + "headings are in order")
    small = page.run("Math.min(...[...document.querySelectorAll('main :not(svg *)')].filter(e => e.getClientRects().length)"
                     ".map(e => parseFloat(getComputedStyle(e).fontSize)))")
    expect(small >= 11.5, where + f"the smallest text has {small} pixels")
    expect(page.run("performance.getEntriesByType('resource').filter(r => !r.name.startsWith('data:')).length") == 0, where + "nothing is loaded")
    expect(page.run("![...document.querySelectorAll('b')].some(b => b.textContent.startsWith('torn'))"), where + "a name has become markup")


def check_plots(page, where):
    expect(page.run("[...document.querySelectorAll('.plot')].every(p => p.tabIndex === 0 && p.closest('figure').querySelector('details td'))"),
           where + "every plot takes the keyboard and has a table")
    expect(page.run("document.querySelectorAll('.plot').length >= 5"), where + "there are plots")
    expect(page.run("document.querySelectorAll('b, script').length > 2"), where + "there are values and a script")


def make_study(folder):
    """The page of a study with every section and a problem whose text looks like markup, and one that compares it with another."""
    step = {"program": "0", "backend": "cpu", "kernels": "k", "bits": "ab", "copy_gb_s": 9.0, "peak_gflops": 80.0, "sum_us": 50.0,
            "slice_ms": [5.0] * 6}
    lines = [{"part": "node", "nodes": [node], "node": node, "round": i, "result": {**step, "images_per_s": 100.0 + i}}
             for node in ("node1", "node2") for i in range(3)]
    lines += [{"part": "pair", "nodes": ["node1", "node2"], "round": i, "result": {"bandwidth_gbit_s": 9.0 + i, "message_us": [20.0]}}
              for i in range(3)]
    lines += [{"part": "sums", "nodes": ["node1", "node2"], "round": 0, "result": [{"bytes": 4096, "algorithm": "ring", "median_us": 5.0, "p99_us": 9.0, "busbw_gb_s": 1.0,
                                                       "mpi_allreduce_us": 6.0, "wrong": 0}]}]
    lines += [{"part": "scaling", "nodes": nodes, "batch": batch, "repeat": i, "result":
               {**step, "images_per_s": [90.0 * nodes + i] * 3, "alone_ms": [4.0] * 3, "step_ms": [5.0 * nodes] * 3}}
              for nodes, batch in ((1, 64), (2, 64), (2, 32)) for i in range(2)]
    lines += [{"part": "accuracy", "seed": seed, "result": {"accuracy": 80.0 + seed, "seconds": 9.0, "seconds_to_target": 5.0, "images": 100,
               "energy": [{"host": "node1", "joules": 50.0, "seconds": 9.0, "unread": ["<b>torn"]}]}} for seed in (1, 2)]
    lines += [{"part": "lost", "node": "node3", "error": "node3 </script><b>torn"}]
    settings = {"hosts": ["node1", "node2"], "nodes": [1, 2], "ranks": 1, "model": "tutorial", "batch_size": 64, "global_batch": 64, "target": 80.0}
    study = study_numbers.summarize(settings, [{"key": str(i), **line} for i, line in enumerate(lines)])
    style = os.path.join(root, "src", "page", "page.css")
    other = {**study, "metrics": {name: {**found, "low": found["high"] + 1, "high": found["high"] + 2}
                                  for name, found in study["metrics"].items()}}
    pages = {"study.html": study_page.page(study, style), "compared.html": study_page.Comparison(study, other).page(style)}
    for name, text in pages.items():
        files.replace(os.path.join(folder, name), text.encode())
    return [os.path.join(folder, name) for name in pages]


def luminance(colour):
    parts = [int(p) / 255 for p in colour[colour.index("(") + 1:-1].split(",")[:3]]
    parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def check_colours(page, where, dark):
    """WCAG: 4.5 for text, 3 for lines."""
    ground = luminance(page.run("getComputedStyle(document.body).backgroundColor"))
    expect((ground < 0.1) == dark, where + "the ground follows the reader's choice")

    def contrast(colour):
        light, other = sorted((luminance(colour), ground), reverse=True)
        return (light + 0.05) / (other + 0.05)

    for colour in page.run("[...new Set([...document.querySelectorAll('h1, dd, dt, .tx, .ty, .note, summary')].map(e => getComputedStyle(e).color))]"):
        expect(contrast(colour) >= 4.5, where + f"text of {colour} has a contrast of {contrast(colour):.1f}")
    lines = page.run("[...new Set([...document.querySelectorAll('.line')].map(e => getComputedStyle(e).stroke + '|' + getComputedStyle(e).strokeDasharray))]")
    for colour in {line.split("|")[0] for line in lines}:
        expect(contrast(colour) >= 3.0, where + f"lines of {colour} have a contrast of {contrast(colour):.1f}")
    expect(len({line.split("|")[1] for line in lines}) == len({line.split("|")[0] for line in lines}), where + "lines differ by dashes as by colour")


def tip(page, chart):
    return page.run(f"(() => {{ const t = document.querySelector('#{chart} .tip'); return t.hidden ? '' : t.innerText; }})()")


def check_hover(page, where):
    page.run("document.querySelector('#loss').scrollIntoView()")
    box = page.run("JSON.stringify(document.querySelector('#loss .plot').getBoundingClientRect())")
    box = json.loads(box)
    chart = page.run("JSON.parse(document.getElementById('data').textContent).charts.find(c => c.id === 'loss')")
    expect(tip(page, "loss") == "", where + "no values without a pointer")
    for share, index in (0.999, -1), (0.001, 0):
        page.point_at(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        series = chart["series"][0]
        text = tip(page, "loss")
        expect(text.startswith(f"step {series['step'][index]}"), where + f"the pointer shows {text!r}")
        value = float("%.4g" % series["value"][index])
        expect(f"{series['name']}: {value:g}" in text, where + f"{value:g} is not in {text!r}")
        inside = page.run("(() => { const r = document.querySelector('#loss .tip').getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth; })()")
        expect(inside, where + "the values leave the screen")
        keys = page.run("""[...document.querySelectorAll('#loss .tip div')].map(d => [d.querySelector('svg'), d.querySelector('span')].map(e => e.getBoundingClientRect()))
            .every(([svg, words]) => svg.width > 10 && svg.right <= words.left && Math.abs(svg.top - words.top) < 20)""")
        expect(keys, where + "each value has its line's sample before it")
    page.point_at(1, 1)
    expect(tip(page, "loss") == "", where + "the values stay when the pointer has gone")
    page.touch_at(box["x"] + 1, box["y"] + box["height"] / 2)
    expect(tip(page, "loss").startswith(f"step {chart['series'][0]['step'][0]}"), where + f"a finger shows {tip(page, 'loss')!r}")
    page.touch_at(2, 2)
    expect(tip(page, "loss") == "", where + "the values stay when a finger is elsewhere")
    page.run("document.querySelector('#loss .plot').focus()")
    for key, index in ("ArrowRight", 0), ("ArrowRight", 1), ("End", -1), ("ArrowLeft", -2), ("Home", 0):
        page.press(key)
        expect(tip(page, "loss").startswith(f"step {chart['series'][0]['step'][index]}\n"), where + f"{key} shows {tip(page, 'loss')!r}")
    page.press("Escape")
    expect(tip(page, "loss") == "", where + "Escape leaves the values")
    expect(page.run("document.querySelector('#loss .tip').getAttribute('role')") == "status", where + "values are not announced")


def check_bars(page, where):
    shown = "getComputedStyle(document.querySelector('.bar'), '::after').content"
    expect(page.run(shown) == "none", where + "no words over an unfocused bar")
    page.run("document.querySelector('.bar').focus()")
    expect("all-reduce exposed" in page.run(shown), where + f"a bar in focus shows {page.run(shown)!r}")
    page.run("document.activeElement.blur()")


def check_axes(page, where):
    for axis in "epoch", "time", "step":
        page.run(f"document.getElementById('axis-{axis}').click()")
        shown = page.run("[...document.querySelectorAll('.over')].filter(o => o.getClientRects().length).map(o => o.className)")
        expect(shown and all(name.endswith(axis) for name in shown), where + f"the axis {axis} shows {set(shown)}")
    page.run("document.getElementById('axis-time').click(); document.querySelector('#loss .plot').focus()")
    page.press("End")
    expect("of training" in tip(page, "loss"), where + "the values follow the axis")
    page.run("document.getElementById('axis-step').click()")


def check_svg(path):
    """The part of the page that a README may show, against the page."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    picture = report_svg.svg_of(page)
    expect(len(picture) < 60_000, f"the SVG has {len(picture)} characters")
    names = {"s": "http://www.w3.org/2000/svg"}
    root = xml.etree.ElementTree.fromstring(picture)
    words = [text.text for text in root.iterfind("s:text", names)]
    for wanted in "Loss over steps", "Accuracy over steps", "test accuracy", "Where the time of a step goes":
        expect(wanted in words, f"the SVG lacks {wanted!r}: {words}")
    lines = [line.get("d") for line in root.iterfind("s:svg/s:path", names) if line.get("class").startswith("line")]
    expect(len(lines) == 5 and all(f'd="{line}"' in page for line in lines), f"the SVG has {len(lines)} lines of the page")
    bars = [rect for rect in root.iterfind("s:rect", names) if rect.get("height") == "18"]
    expect(abs(sum(float(bar.get("width")) for bar in bars) - 600) < 2, "the parts of the rank's step are no whole")
    expect("prefers-color-scheme: dark" in picture, "the SVG is light alone")


def check_policy(path):
    """The hashes of the page's policy are those of its style and script."""
    with open(path, encoding="utf-8", newline="") as file:
        page = file.read()
    for tag in "style", "script":
        texts = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
        expect(len(texts) == 1, f"the page has {len(texts)} times <{tag}>")
        digest = base64.b64encode(hashlib.sha256(texts[0].encode()).digest()).decode()
        expect(f"{tag}-src 'sha256-{digest}'" in page, f"the policy lacks the hash of <{tag}>")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    program = devtools.find()
    if program is None:
        print("skipped: there is no Chromium here (Debian: apt-get install chromium)")
        sys.exit(77)
    pictures = os.environ.get("CIFAR_MPI_PICTURES")
    with tempfile.TemporaryDirectory(prefix="cifar_mpi_browser_test_") as folder:
        single, both = make_runs(sys.argv[1], folder)
        study, compared = make_study(folder)
        check_svg(single)
        check_policy(single)
        try:
            browser = devtools.Browser(program)
        except OSError as error:  # like Ubuntu's, which only prints where to get one
            print(f"skipped: {error}")
            sys.exit(77)
        with browser as page:
            for path, kind in (single, "one run"), (both, "two runs"), (study, "study"), (compared, "two studies"):
                for width, height in (1280, 900), (360, 740):
                    for dark in False, True:
                        where = f"{kind}, {width} pixels, {'dark' if dark else 'light'}: "
                        page.open(path, width, height, dark, phone=width < 600)
                        check_structure(page, where, width)
                        check_colours(page, where, dark)
                        if path in (single, both):
                            check_plots(page, where)
                        if path == single:
                            check_hover(page, where)
                            check_axes(page, where)
                            check_bars(page, where)
                        expect(not page.console, where + f"the console says {page.console[:2]}")
                        page.console.clear()
                        if pictures:
                            name = f"{kind.replace(' ', '_')}_{width}_{'dark' if dark else 'light'}.png"
                            files.replace(os.path.join(pictures, name), page.picture())
                if path == study:
                    expect(page.run("document.querySelector('#problems').innerText.includes('node3 </script><b>torn')"), "the problem is shown")
                    expect(page.run("document.querySelectorAll('main table').length") == 7, "there is a table for each part")
                    continue
                if path == compared:
                    rows = page.run("[...document.querySelectorAll('main table')].map(t => t.rows.length)")
                    expect(len(rows) == 2 and rows[0] == rows[1] > 10, f"all metrics differ: tables of {rows} rows")
                    expect(page.run("document.querySelectorAll('figure path.line.s3').length") > 1, "the chart has four curves")
                    continue
                expect(page.run("[...document.querySelectorAll('.flag')].some(f => f.textContent === 'resume')"), kind + ": marks")
                expect(path != both or page.run("['</script><b>torn', 'ends in the middle'].some(t => document.querySelector('#problems').innerText.includes(t))"),
                       "the torn line is reported")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
