"""A part of a report's page as one SVG file: the accuracy, the curves of loss and accuracy, and the time of a step by section.

The file is text, so that it can be stored next to a README. Its colours follow the reader's light or dark screen.
"""
import html.parser
import re
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT = 860, 62, 838
VOID = {"meta", "input", "img", "br", "path", "link"}
# Colours that the page paints with gradients.
BARS = ("--c1", "--c0", "--c5", "--bad", "--c2", "--soft")


class Node:
    def __init__(self, tag, attributes):
        self.tag, self.attributes, self.children = tag, dict(attributes), []

    def all(self, tag, name=""):
        """Elements of that tag below this one, of that class if it is given."""
        for child in self.children:
            if isinstance(child, Node):
                if child.tag == tag and (not name or name in self_classes(child)):
                    yield child
                yield from child.all(tag, name)

    def one(self, tag, name=""):
        return next(self.all(tag, name), Node("", {}))

    def by_id(self, wanted):
        for child in self.children:
            if isinstance(child, Node):
                found = child if child.attributes.get("id") == wanted else child.by_id(wanted)
                if found:
                    return found
        return None

    def text(self):
        return "".join(child if isinstance(child, str) else child.text() for child in self.children)


def self_classes(node):
    return (node.attributes.get("class") or "").split()


class Tree(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.root = Node("", {})
        self.open = [self.root]
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        node = Node(tag, attributes)
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag, attributes):
        self.open[-1].children.append(Node(tag, attributes))

    def handle_endtag(self, tag):
        if tag not in VOID and len(self.open) > 1:
            self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def text_at(x, y, words, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>'


def share(node):
    """The value of the classes p12 and q34: 0.1234."""
    parts = {name[0]: int(name[1:]) for name in self_classes(node) if re.fullmatch(r"[pq]\d+", name)}
    return (parts["p"] + parts.get("q", 0) / 100) / 100


def chart(figure, top, height):
    """Title, legend and the picture over steps."""
    parts = [text_at(LEFT, top, figure.one("h3").text() + " over steps", ' class="title"')]
    x = LEFT
    for entry in figure.one("ul", "legend").all("li"):
        style = self_classes(entry.one("path"))[-1]
        words = re.sub(r" *\(.*", "", entry.text())
        parts.append(f'<path class="line {style}" d="M{x} {top + 18}h30"/>' + text_at(x + 36, top + 22, words))
        x += 60 + 6.6 * len(words)
    over, begin = figure.one("div", "over-step"), top + 36
    picture = over.one("svg")
    parts.append(f'<svg x="{LEFT}" y="{begin}" width="{RIGHT - LEFT}" height="{height}" viewBox="{picture.attributes["viewbox"]}" '
                 'preserveAspectRatio="none" overflow="visible">')
    parts += [f'<path class="{path.attributes["class"]}" d="{path.attributes["d"]}"/>' for path in picture.all("path")]
    parts.append("</svg>")
    for tick in over.all("span", "tx"):
        parts.append(text_at(LEFT + share(tick) * (RIGHT - LEFT), begin + height + 17, tick.text(), ' text-anchor="middle"'))
    for tick in figure.all("span", "ty"):
        parts.append(text_at(LEFT - 7, begin + height * (1 - share(tick)) + 4, tick.text(), ' text-anchor="end"'))
    return parts, begin + height + 17


def budget(section, top):
    """A bar for each rank."""
    parts, x = [text_at(LEFT, top, "Where the time of a step goes", ' class="title"')], LEFT
    for kind, entry in enumerate(section.one("ul", "legend").all("li")):
        parts.append(f'<rect x="{x}" y="{top + 12}" width="20" height="10" fill="var({BARS[kind]})"/>' + text_at(x + 26, top + 21, entry.text()))
        x += 46 + 6.6 * len(entry.text())
    y, begin, end = top + 34, LEFT + 100, RIGHT - 76
    for entry in list(section.one("ul", "bars").all("li"))[:8]:
        parts.append(text_at(begin - 8, y + 13, entry.one("span").text(), ' text-anchor="end"'))
        at = begin
        for part in entry.one("div", "bar").all("span"):
            width = share(part) * (end - begin)
            parts.append(f'<rect x="{at:.1f}" y="{y}" width="{width:.1f}" height="18" fill="var({BARS[int(self_classes(part)[0][1:])]})"/>')
            at += width
        parts.append(text_at(end + 8, y + 13, entry.one("b").text()))
        y += 26
    return parts, y


def lines_of(words, most):
    """Cut between words."""
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > most:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def style_of(style):
    """The colours and lines of the page's style; ignores texts of a run's files elsewhere in the page that look like styles."""
    colours = re.findall(r"--[\w]+: #\w+;", style[style.index(":root"):style.index("* { box-sizing")])
    half = len(colours) // 2
    rules = re.findall(r"^(?:path|\.grid|\.line|\.dots|\.band|\.mark|\.s\d) \{.*$", style, re.M)
    return (f":root {{ {' '.join(colours[:half])} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {' '.join(colours[half:])} }} }}\n" +
            "\n".join(rules) + "\ntext { font: 12px system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: var(--soft); }\n"
            ".title { font-size: 15px; font-weight: 600; fill: var(--text); }\n.figure { font-size: 20px; font-weight: 600; fill: var(--text); }")


def svg_of(page):
    """Converts the text of the page to that of the SVG."""
    root = Tree(page).root
    parts, x = [], LEFT
    for tile in root.one("ul", "tiles").all("li"):
        parts += [text_at(x, 30, tile.one("span").text()), text_at(x, 54, tile.one("b").text(), ' class="figure"')]
        x += (RIGHT - LEFT) / 5
    y = 84
    for name, height in ("loss", 190), ("accuracy", 120):
        figure = root.by_id(name)
        if figure:
            more, y = chart(figure, y, height)
            parts += more
            y += 32
    section = root.by_id("budget")
    if section:
        more, y = budget(section, y)
        parts += more
    for line in lines_of(root.one("p", "verdict").text(), 118):
        y += 18
        parts.append(text_at(LEFT, y, line))
    words = "; ".join(f'{tile.one("span").text()} {tile.one("b").text()}' for tile in root.one("ul", "tiles").all("li"))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 20:.0f}" role="img" aria-label="{escape(words, {chr(34): "&quot;"})}">\n'
            f'<style>\n{style_of(root.one("style").text())}\n</style>\n<rect width="100%" height="100%" fill="var(--ground)"/>\n' + "\n".join(parts) + "\n</svg>\n")
