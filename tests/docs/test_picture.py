"""The picture of a loss curve is made of a run's numbers, and of nothing that hides on a dark page."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from benchmarks.plot_curve import curves, svg
from tests.docs.pages import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def write_metrics(run, lines):
    (run / "monitors").mkdir(parents=True)
    (run / "monitors/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_curve_has_a_point_for_each_logged_step_and_a_dot_for_each_validation(tmp_path):
    write_metrics(
        tmp_path,
        [
            {"step": 1, "loss/mean": 6.0},
            {"step": 2, "loss/mean": 5.0},
            {"step": 3, "loss/mean": "nan"},
            {"step": 2, "loss/mean": 4.0},  # went back: supersedes steps 2 and 3
            {"step": 2, "val/loss": 4.5},
        ],
    )
    train, held_out = curves(tmp_path)
    assert (train, held_out) == ([(1, 6.0), (2, 4.0)], [(2, 4.5)])
    picture = ElementTree.fromstring(svg(train, held_out, mark=("a <guess>", 5.5)))
    line = picture.find(f"{SVG}polyline")
    assert line is not None and len(line.attrib["points"].split()) == 2
    assert len(picture.findall(f"{SVG}circle")) == 1 + 1  # the dot and its sign in the legend
    assert "a <guess>: 5.50" in [text.text for text in picture.iter(f"{SVG}text")]


def test_the_picture_in_the_readme_is_plain_svg_without_a_background():
    picture = ElementTree.parse(ROOT / "docs/images/loss.svg").getroot()
    tags = {element.tag.removeprefix(SVG) for element in picture.iter()}
    assert tags == {"svg", "title", "line", "text", "polyline", "circle"}
    colours = {
        element.attrib[key]
        for element in picture.iter()
        for key in ("fill", "stroke")
        if key in element.attrib
    }
    assert colours <= {"none", "#7d8590", "#3b82f6", "#d97706"}
