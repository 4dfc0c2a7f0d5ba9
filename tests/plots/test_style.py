"""The common style of the figures of a comparison."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from compare.builders import LABELS, random_comparison
from mopbt.compare.measures import measure
from mopbt.compare.report import draw
from mopbt.plots.style import (
    BLACK,
    BLUE,
    FRONT,
    GRAY,
    GREEN,
    LEAD,
    ORANGE,
    PURPLE,
    SKY,
    SPARE,
    STYLES,
    styles_of,
)


class TestStyles:
    def test_mo_pbt_always_looks_the_same(self):
        for labels in (LABELS, LABELS[::-1], ("x", "MO-PBT", "y")):
            assert styles_of(labels)["MO-PBT"] == LEAD

    def test_without_mo_pbt_the_first_leads(self):
        assert styles_of(("x", "y"))["x"] == LEAD

    def test_the_papers_algorithms_look_the_same_in_every_company(self):
        assert (
            styles_of(("MO-PBT", "MO-ASHA", "x"))["MO-ASHA"]
            == styles_of(("MO-PBT", "y", "z", "MO-ASHA"))["MO-ASHA"]
        )

    def test_all_differ_in_color_or_line_and_in_marker(self):
        labels = (*STYLES, *(f"other {i}" for i in range(6)))
        styles = list(styles_of(labels).values())
        assert len({(style.color, style.line) for style in styles}) == len(styles)
        assert len({style.marker for style in STYLES.values()}) == len(STYLES)

    def test_an_algorithm_looks_the_same_on_tasks_without_another_one(self):
        comparison = random_comparison(("a", "b"), labels=("MO-PBT", "x", "y"))
        runs = tuple(run for run in comparison.runs if run.task == "a" or run.algorithm != "x")
        figures = draw("attainment", measure(replace(comparison, runs=runs)))
        colors = []
        for figure in figures.values():
            (legend,) = figure.legends
            lines = zip(legend.get_texts(), legend.legend_handles, strict=True)
            colors.append({text.get_text(): line.get_color() for text, line in lines})
        assert [set(each) for each in colors] == [{"MO-PBT", "x", "y"}, {"MO-PBT", "y"}]
        assert colors[1].items() <= colors[0].items()

    def test_more_labels_than_styles_still_get_one(self):
        assert len(styles_of(f"label {i}" for i in range(len(SPARE) + 5))) == len(SPARE) + 5

    @pytest.mark.parametrize("vision", ["normal", "protan", "deutan", "tritan"])
    def test_colors_can_be_distinguished_by_every_kind_of_vision(self, vision):
        """Distances in CIELAB after Machado, Oliveira and Fernandes (2009), full severity.

        10 is a clear difference at a glance.
        """
        colors = [FRONT, BLUE, GREEN, ORANGE, PURPLE, SKY, GRAY, BLACK]
        places = [lab(np.array(VISIONS[vision]) @ linear(color)) for color in colors]
        distances = {
            pair: np.linalg.norm(places[pair[0]] - places[pair[1]])
            for pair in itertools.combinations(range(8), 2)
        }
        assert min(distances.values()) > 15
        assert min(distance for pair, distance in distances.items() if 0 in pair) > 28


VISIONS = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(color):
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
