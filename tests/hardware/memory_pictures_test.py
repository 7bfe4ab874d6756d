# SPDX-License-Identifier: Apache-2.0
"""The timelines that hardware_memory_test writes, read by parsers of XML, HTML and JSON, and the
areas in the picture measured against the figures.

usage: memory_pictures_test.py TEST_PROGRAM
"""

import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

PROGRAM = sys.argv[1]
NAMES = ("none", "one", "seven", "many", "limit", "far", "sampled", "text", "long")
CATEGORIES = ("parameters", "buffers", "gradients", "optimizer", "other", "activations")
TITLE = "</title><script>alert(1)</script> ]]> & \"'\ufffd\ufffd\ufffd \u00e9"
UNITS = {"B": 1, "KiB": 1024, "MiB": 1024 ** 2, "GiB": 1024 ** 3}


def text_of(node):
    return "".join(child.data for child in node.childNodes if child.nodeType == child.TEXT_NODE)


def corners(path):
    return [tuple(map(float, pair.split())) for pair in re.findall(r"[ML]([\d.]+ [\d.]+)", path)]


class Axis:
    """From the labels of the picture: bytes at a height."""

    def __init__(self, svg):
        ticks = []
        for node in svg.getElementsByTagName("text"):
            found = re.fullmatch(r"(\d+) (B|KiB|MiB|GiB)", text_of(node))
            if found and node.getAttribute("text-anchor") == "end":
                ticks.append((float(node.getAttribute("y")) - 4,
                              int(found.group(1)) * UNITS[found.group(2)]))
        (self.zero, _), (self.top, self.bytes) = ticks[0], ticks[-1]

    def value(self, y):
        return (self.zero - y) / (self.zero - self.top) * self.bytes

    def error(self):
        """Bytes of a tenth of a unit: what the rounded coordinates may be off by."""
        return 0.1 / (self.zero - self.top) * self.bytes


class Script(html.parser.HTMLParser):
    """The text of the page's script, as a browser sees it."""

    def __init__(self, page):
        super().__init__()
        self.text, self.inside, self.scripts = "", False, 0
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.inside = tag == "script"
        self.scripts += self.inside

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        self.text += data if self.inside else ""


class Pictures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        subprocess.run([PROGRAM, "--gtest_brief=1", "--gtest_filter=Pictures.*"], check=True,
                       env={**os.environ, "DRIVETRAIN_TEST_OUTPUT": cls.scratch.name})
        cls.json = {name: json.loads((cls.folder / f"{name}.json").read_text()) for name in NAMES}
        cls.svg = {name: xml.dom.minidom.parse(str(cls.folder / f"{name}.svg")) for name in NAMES}

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def path(self, name, identity):
        return next((corners(node.getAttribute("d"))
                     for node in self.svg[name].getElementsByTagName("path")
                     if node.getAttribute("id") == identity), None)

    def test_the_points_cover_every_step(self):
        for name, steps in (("none", 0), ("one", 1), ("seven", 7), ("many", 10000), ("limit", 20)):
            document = self.json[name]
            self.assertEqual(document["format"], "drivetrain.memory_timeline")
            self.assertEqual((document["steps"], document["version"]), (steps, 1))
            covered = [step for point in document["points"]
                       for step in range(point["first_step"], point["last_step"] + 1)]
            self.assertEqual(covered, list(range(steps)))
            for point in document["points"]:
                self.assertEqual(point["parameters"], 4700 * 4)
                if document["steps_per_point"] == 1:
                    self.assertEqual(sum(point[c] for c in CATEGORIES), point["peak"])

    def test_the_areas_are_the_figures(self):
        for name in ("one", "seven", "many", "limit", "far", "sampled"):
            axis = Axis(self.svg[name])
            points = self.json[name]["points"]
            steps = self.json[name]["steps"]
            for count in range(1, len(CATEGORIES) + 1):
                outline = self.path(name, CATEGORIES[count - 1])
                left, right = min(x for x, _ in outline), max(x for x, _ in outline)
                for point in points[::max(1, len(points) // 50)]:
                    middle = (point["first_step"] + point["last_step"] + 1) / 2
                    x = left + (right - left) * middle / steps
                    # Where the outline crosses this place, the highest is the area's upper edge.
                    crossed = [a[1] for a, b in zip(outline, outline[1:])
                               if min(a[0], b[0]) - 0.06 <= x <= max(a[0], b[0]) + 0.06
                               and a[1] == b[1]]
                    expected = sum(point[c] for c in CATEGORIES[:count])
                    nearest = min(abs(axis.value(y) - expected) for y in crossed)
                    self.assertLess(nearest, 2 * axis.error(), (name, CATEGORIES[count - 1], x))

    def test_the_peak_is_marked(self):
        for name in ("one", "seven", "many"):
            peak = max(point["peak"] for point in self.json[name]["points"])
            circle, = (node for node in self.svg[name].getElementsByTagName("circle"))
            axis = Axis(self.svg[name])
            self.assertAlmostEqual(axis.value(float(circle.getAttribute("cy"))), peak,
                                   delta=2 * axis.error())
            self.assertTrue(any(re.fullmatch(r"peak [\d.]+ KiB, step \d+", text_of(node))
                                for node in self.svg[name].getElementsByTagName("text")))

    def test_the_limit_is_a_line_where_it_is_near_and_told_where_it_is_far(self):
        line, = (node for node in self.svg["limit"].getElementsByTagName("line")
                 if node.getAttribute("id") == "capacity")
        axis = Axis(self.svg["limit"])
        self.assertAlmostEqual(axis.value(float(line.getAttribute("y1"))), 60000,
                               delta=2 * axis.error())
        far = (self.folder / "far.svg").read_text()
        self.assertNotIn('id="capacity"', far)
        self.assertIn("limit 80.0 GiB (above the picture)", far)

    def test_everything_is_inside_the_picture(self):
        for name in NAMES:
            root = self.svg[name].documentElement
            width, height = map(float, root.getAttribute("viewBox").split()[2:])
            for node in root.getElementsByTagName("path"):
                for x, y in corners(node.getAttribute("d")):
                    self.assertTrue(0 <= x <= width and 0 <= y <= height, (name, x, y))
            for node in root.getElementsByTagName("text"):
                self.assertLess(float(node.getAttribute("y")), height)

    def test_text_is_escaped(self):
        self.assertEqual(self.json["text"]["title"][:40], TITLE[:40])
        for suffix in ("svg", "html"):
            document = xml.dom.minidom.parse(str(self.folder / f"text.{suffix}"))
            self.assertEqual(text_of(document.getElementsByTagName("title")[0]), TITLE)
        labels = [text_of(node) for node in self.svg["seven"].getElementsByTagName("title")]
        self.assertIn('at after <forward> & "co"', labels)
        self.assertTrue(any(text_of(node).endswith("x\u2026")
                            for node in self.svg["long"].getElementsByTagName("text")))

    def test_no_step_is_said(self):
        self.assertIn("no step has ended yet", (self.folder / "none.svg").read_text())

    def test_the_page_needs_nothing_else_and_holds_the_points(self):
        for name in NAMES:
            page = (self.folder / f"{name}.html").read_text()
            document = xml.dom.minidom.parseString(page.encode())
            for node in document.getElementsByTagName("*"):
                for attribute in ("src", "href", "xlink:href", "data"):
                    self.assertFalse(node.hasAttribute(attribute), node.toxml())
            self.assertNotRegex(page, r"url\(|@import|fetch\(|import\(")
            script = Script(page)
            self.assertEqual(script.scripts, 1)
            data = json.loads(re.search(r"const data = (\{.*\});", script.text).group(1))
            self.assertEqual(data["points"], self.json[name]["points"])
            self.assertEqual(sorted(data["categories"]), sorted(CATEGORIES))

    def test_the_page_shows_the_values_under_the_pointer(self):
        if shutil.which("node") is None:
            self.skipTest("no node to run the page's script with")
        # Just as much of a document as the script asks for.
        stub = """
          const element = () => ({style: {}, attributes: {}, rows: [], offsetWidth: 10,
            offsetHeight: 10, handlers: {}, textContent: "",
            setAttribute(name, value) { this.attributes[name] = value; },
            appendChild(child) { this.rows.push(child); return child; },
            replaceChildren(...rows) { this.rows = rows; },
            addEventListener(name, handler) { this.handlers[name] = handler; },
            getScreenCTM() { return {inverse: () => null}; }});
          const found = element(), values = element();
          globalThis.innerWidth = globalThis.innerHeight = 1000;
          globalThis.DOMPoint = class { constructor(x, y) { this.x = x; this.y = y; }
            matrixTransform() { return this; } };
          globalThis.document = {querySelector: () => found, getElementById: () => values,
            createElement: element, createElementNS: element};
        """
        ask = """
          found.handlers.pointermove({clientX: data.left + (data.right - data.left) * 3.5 / 7,
            clientY: 100});
          console.log(JSON.stringify(values.rows.map(row => row.rows.map(c => c.textContent))));
          found.handlers.pointermove({clientX: data.right + 5, clientY: 100});
          console.log(values.style.display);
        """
        script = Script((self.folder / "seven.html").read_text()).text
        run = subprocess.run(["node", "-e", stub + script + ask], capture_output=True, text=True,
                             check=True)
        rows, display = run.stdout.splitlines()
        shown = dict(json.loads(rows))
        self.assertIn("step 3", shown)
        point = self.json["seven"]["points"][3]
        self.assertEqual(shown["parameters"], "18.4 KiB")
        self.assertEqual(shown["peak"], f"{point['peak'] / 1024:.1f} KiB")
        self.assertEqual(shown["allocated at the end"], f"{point['allocated'] / 1024:.1f} KiB")
        self.assertEqual(display, "none")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
