"""Shows the result of tools/study: as text, as an HTML page in the style of cifar_mpi_report, and two of them side by side."""
import contextlib
from html import escape

from study_numbers import counted

HEAD = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'  # of each page


def digits(value):
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def spread(found):
    return f"{digits(found['median'])} ({digits(found['low'])} to {digits(found['high'])})"


def percent(share):
    return f"{100 * share:.0f} %"


def tables(study):
    """Of each part: its title, the heads of its columns, its rows; all but the first column are numbers or short."""
    found = []
    if study["nodes"]:
        heads = {"images_per_s": "images/s", "processor_share": "share of the processor", "peak_gflops": "GFLOP/s of one rank",
                 "copy_gb_s": "copy, GB/s", "sum_us": "all-reduce of 4 MiB, us"}
        names = [name for name in heads if any(name in node for node in study["nodes"].values())]
        found.append(("Nodes", ["node"] + [heads[name] for name in names] + ["bits"],
                      [[node] + [spread(row[name]) if name in row else "-" for name in names] + [row["bits"]]
                       for node, row in study["nodes"].items()]))
    if study["pairs"]:
        found.append(("Links, by pairs of nodes", ["pair", "Gbit/s", "latency, us"],
                      [[pair, spread(row["bandwidth_gbit_s"]), spread(row["latency_us"])] for pair, row in study["pairs"].items()]))
    if study["sums"]:
        found.append(("All-reduce over all nodes", ["algorithm", "bytes", "median, us", "p99, us", "bus, GB/s", "of MPI_Allreduce"],
                      [[row["algorithm"], str(row["bytes"]), spread(row["median_us"]), digits(row["p99_us"]), digits(row["busbw_gb_s"]),
                        digits(row["of_mpi"])] for row in study["sums"]]))
    for mode, rows in study["scaling"].items():
        if rows:
            found.append((f"{mode.capitalize()} scaling", ["nodes", "ranks", "batch per rank", "images/s", "launches", "scaling efficiency",
                                                           "communication", "verdict"],
                          [[str(row["nodes"]), str(row["ranks"]), str(row["batch_per_rank"]), spread(row["images_per_s"]),
                            str(row["images_per_s"]["n"]), percent(row["efficiency"]), percent(row["communication"]), row["verdict"]]
                           for row in rows]))
    if study.get("ways"):  # studies of earlier programs lack it
        found.append(("Ways to update", ["way", "workers + servers", "images/s", "ms per step"],
                      [[row["way"], row["ranks"].replace("+", " + "), spread(row["images_per_s"]), spread(row["ms_per_step"])]
                       for row in study["ways"]]))
    if study["accuracy"]:
        found.append((f"Time to {study['accuracy']['target']:g} % test accuracy",
                      ["seed", "accuracy at the end, %", "s", "s to the target"],
                      [[str(run["seed"]), f"{run['accuracy']:.2f}", digits(run["seconds"]), digits(run["seconds_to_target"])]
                       for run in study["accuracy"]["runs"]]))
    if study.get("time", {}).get("stopped"):
        found.append(("Stopped for time", ["measurement", "launches", "launches left out"],
                      [[row["what"], str(row["launches"]), str(row["left_out"])] for row in study["time"]["stopped"]]))
    return found


def remarks(study):
    """Sentences about what the tables do not show."""
    found = []
    accuracy, energy = study["accuracy"], study["energy"]
    if accuracy and "accuracy" in accuracy:
        mean = accuracy["accuracy"]
        found.append(f"Accuracy: mean {mean['mean']:.2f} %, 95 % interval {mean['low']:.2f} to {mean['high']:.2f}, standard deviation "
                     f"{mean['deviation']:.2f}; one-sided t-test of the mean above the target: p = {accuracy['p']:.3g}, "
                     f"{'passed' if accuracy['p'] < 0.05 else 'not passed'} at 0.05.")
    if energy:
        for name, text in (("joules_per_image", "J per image"), ("joules_to_target", "J to the target")):
            if name in energy:
                found.append(f"Energy: {spread(energy[name])} {text}.")
        found += [f"Energy not read: {text}" for text in energy["unread"]]
    if "time" in study:  # studies of earlier programs lack it
        minutes, spent = study["time"]["minutes"], study["time"]["spent_s"] / 60
        found.append(f"The study took {spent:.3g} of {minutes:g} min" + (
            ", because it makes the first launch of each measurement in any case" if spent > minutes + 1 else "") + "." + (
            " More --minutes complete it." if study["time"]["stopped"] else ""))
    return found


def text(study):
    """The problems, the tables and the remarks, for a terminal."""
    parts = ["Problems:\n" + "\n".join("  " + problem for problem in study["problems"]) if study["problems"] else "No problem was found."]
    for title, heads, rows in tables(study):
        widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
        parts.append(title + "\n" + "\n".join("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                                              for row in [heads, *rows]))
    return "\n\n".join(parts + ["\n".join(remarks(study))] * bool(remarks(study)))


def chart(curves):
    """Images/s over nodes of {name: rows}, with the line of perfect scaling; none where there are fewer than two numbers of nodes."""
    modes = {name: rows for name, rows in curves.items() if len(rows) > 1}
    if not modes:
        return ""
    first = next(iter(modes.values()))[0]
    most = max(row["nodes"] for rows in modes.values() for row in rows)
    each = first["images_per_s"]["median"] / first["nodes"]
    top = max([each * most] + [row["images_per_s"]["high"] for rows in modes.values() for row in rows])

    def point(nodes, speed):
        return f"{60 + 520 * nodes / most:.1f},{250 - 230 * speed / top:.1f}"

    lines, legend = [f'<path class="grid" d="M{point(0, 0)} L{point(most, each * most)}"/>'], []
    for i, (mode, rows) in enumerate(modes.items()):
        lines.append(f'<path class="line s{i}" d="M{" L".join(point(row["nodes"], row["images_per_s"]["median"]) for row in rows)}"/>')
        for row in rows:
            speed = row["images_per_s"]
            lines.append(f'<path class="line s{i}" d="M{point(row["nodes"], speed["low"])} L{point(row["nodes"], speed["high"])}"/>')
        legend.append(f'<li><svg class="key" viewBox="0 0 35 10" aria-hidden="true"><path class="line s{i}" d="M0,5 L35,5"/></svg>'
                      f"{mode}</li>")
    labels = "".join(f'<text x="{60 + 520 * row["nodes"] / most:.1f}" y="268" text-anchor="middle">{row["nodes"]}</text>' for row in
                     max(modes.values(), key=len))
    labels += f'<text x="55" y="24" text-anchor="end">{digits(top)}</text><text x="55" y="254" text-anchor="end">0</text>'
    return (f'<figure><ul class="legend">{"".join(legend)}<li>grey: perfect scaling</li></ul><svg viewBox="0 0 600 290" role="img" '
            f'aria-label="Images per second over nodes; the tables below have the numbers">{"".join(lines)}'
            f'<path class="grid" d="M60,20 L60,250 L580,250"/>{labels}<text x="320" y="286" text-anchor="middle">nodes</text></svg>'
            "</figure>")


def table_html(heads, rows):
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heads)
    cells = [[f'<td{" class=wide" if len(cell) > 40 else ""}>{escape(cell)}</td>' for cell in row[1:]] for row in rows]
    body = "".join(f'<tr><th scope="row">{escape(row[0])}</th>{"".join(rest)}</tr>' for row, rest in zip(rows, cells))
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def curves_of(study, suffix=""):
    return {f"{mode} scaling{suffix}": rows for mode, rows in study["scaling"].items()}


def is_page(path):
    """Whether a page may replace the file: only another page, because --page could name a dataset by mistake."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(len(HEAD)) in (b"", HEAD.encode())
    return True  # writing reports the problem


def whole_page(title, style, body):
    """`style` is the path of the report's style sheet."""
    try:
        with open(style, encoding="utf-8") as file:
            css = file.read()
    except OSError:
        css = ""  # a tree without sources: the page is plain
    return (f'{HEAD}<meta name="viewport" content="width=device-width">\n'
            f"<title>{escape(title)}</title><style>\n{css}\n"
            "svg text { fill: var(--soft); font-size: 12px; }\nfigure { max-width: 46rem; }\n</style></head><body><main>\n"
            f"<h1>{escape(title)}</h1>{body}\n</main></body></html>\n")


def listed(facts):
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items() if value is not None)
    return f"<dl>{items}</dl>\n"


def page(study, style):
    settings = study["settings"]
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in study["problems"])
    sections = [f'<section id="problems"><h2>Problems</h2><ul>{problems}</ul></section>' if problems
                else '<section><h2>Problems</h2><p>No problem was found.</p></section>']
    drawn = chart(curves_of(study))
    sections += [f"<section><h2>Scaling</h2>{drawn}</section>"] if drawn else []
    sections += [f"<section><h2>{escape(title)}</h2>{table_html(heads, rows)}</section>" for title, heads, rows in tables(study)]
    sections += ["".join(f"<p>{escape(remark)}</p>" for remark in remarks(study))]
    facts = {"nodes": ", ".join(settings["hosts"]), "ranks per node": settings["ranks"], "program": study["program"],
             "backend": study["backend"], "commit of the tool": settings.get("commit"), "begun": settings.get("began"),
             "command": settings.get("command")}
    everything = table_html(["metric", "median and 95 % interval (of fewer than 6 values: their range)", "unit", "values"],
                            [[name, spread(found), found["unit"], str(found["n"])] for name, found in study["metrics"].items()])
    body = (listed(facts) + "\n".join(sections) +
            f"\n<section><h2>To quote</h2><p>{escape(study['paragraph'])}</p></section>\n"
            f"<section><h2>All metrics</h2><details><summary>{len(study['metrics'])} metrics</summary>{everything}</details></section>")
    return whole_page(f"Study of {counted(len(settings['hosts']), 'node')}", style, body)


class Comparison:
    """The metrics that two studies share, and whether their intervals overlap."""

    def __init__(self, before, after):
        # the spelling of earlier programs
        before, after = ({**study, "metrics": {name.replace(", 1 nodes", ", 1 node"): metric for name, metric in study["metrics"].items()}}
                         for study in (before, after))
        self.studies, self.rows, self.agree = (before, after), [], 0
        shared = [name for name in before["metrics"] if name in after["metrics"]]
        for name in shared:
            old, new = before["metrics"][name], after["metrics"][name]
            same = old["low"] <= new["high"] and new["low"] <= old["high"]
            self.agree += same
            self.rows.append([name, old["unit"], spread(old), spread(new), f"{new['median'] / old['median']:.3f}" if old["median"] else "-",
                              "" if same else "differs"])
        alone = len(set(before["metrics"]) ^ set(after["metrics"]))
        self.sum = (f"{self.agree} of {counted(len(shared), 'metric')} {'agrees' if len(shared) == 1 else 'agree'} within their intervals"
                    + (f" ({percent(self.agree / len(shared))})" if shared else "") + f"; {alone} are in one study alone.")

    def text(self):
        """A line per metric, for a terminal."""
        rows = [["metric", "unit", "before", "after", "ratio", ""], *self.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, self.sum])

    def page(self, style):
        """One study laid over the other: scaling in one chart, metrics side by side, and what each of them names."""
        names = ("before", "after")
        drawn = chart({name: rows for study, when in zip(self.studies, names) for name, rows in curves_of(study, f", {when}").items()})
        body = "".join(listed({f"{when}: {key}": study["settings"].get(key) for key in ("began", "commit", "command")} |
                              {f"{when}: nodes": ", ".join(study["settings"]["hosts"])}) for study, when in zip(self.studies, names))
        body += f"<p>{escape(self.sum)}</p>" + (f"<section><h2>Scaling</h2>{drawn}</section>" if drawn else "")
        heads = ["metric", "unit", "before: median and 95 % interval", "after", "ratio", "differs"]
        for title, rows in (("Metrics that differ", [row for row in self.rows if row[-1]]), ("All metrics", self.rows)):
            body += f"<section><h2>{title}</h2>" + (table_html(heads, rows) if rows else "<p>None.</p>") + "</section>"
        for study, when in zip(self.studies, names):
            items = "".join(f"<li>{escape(problem)}</li>" for problem in study["problems"])
            body += f"<section><h2>Problems {when}</h2>" + (f"<ul>{items}</ul>" if items else "<p>No problem was found.</p>") + "</section>"
        return whole_page("Two studies compared", style, body)
