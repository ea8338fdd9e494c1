"""Pictures of Pathfinder: two long dashed curves, short ones to distract, and two discs at ends of the long ones.

The discs are at both ends of one long curve (label 1), or at one end of each (label 0). Lengths are those of the Long
Range Arena's easy 32 x 32 pictures, in pixels, and grow with the size. A point (x, y) is the complex number x + iy.

Six dashes and no other number: drawn like this with 3, 9 or 14, pictures give their label away to a classifier that sees no
more than where the discs are.
"""

import functools

import numpy
from numpy import ndarray

Random = numpy.random.Generator

SIDE = 32
DASHES = 6  # of a long curve
SHORT = 2  # of one that distracts
DASH, GAP = 2.0, 1.0
DISC = 1.5  # radius
MOST_TURN = 0.8  # between a dash and the next, in radians: a curve goes on smoothly
APART = 2.5  # between two curves, and between two far parts of one
DISC_ROOM = 1.0  # more than that, around the ends of long curves
BORDER = 2.0
GREY, WHITE = 0.75, 1.0  # of the dashes, of the discs
DISTRACTORS = 20  # dashes in all distractors
CANDIDATES, ATTEMPTS = 128, 1000
SAME_DISTANCE = 0.75
CELLS = 2  # of the map of distances, to a pixel


def draw(random: Random, label: int, size: int) -> ndarray:
    """(size, size) uint8."""
    first, second, distances, apart = _two_long(random)
    distractors = _apart(_candidates(random, SHORT, distances), DISTRACTORS // SHORT)
    return _paint([first, second, *distractors], first[[0, -1]] if label else apart, size)


def _two_long(random: Random) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Two curves, the map of the distances to the nearer one, and an end of each.

    These ends are as far from each other as the ends of the first curve: whatever the label is, the curves come from one
    distribution and so does the distance of the discs, which would give the label away otherwise.
    """
    nothing = numpy.full((SIDE * CELLS, SIDE * CELLS), SIDE, dtype=numpy.float32)
    for _ in range(ATTEMPTS):
        curves = _candidates(random, DASHES, nothing)
        for at, first in enumerate(curves):
            others = curves[at + 1 :]
            ends = others[:, None, [0, -1]] - first[[0, -1], None]  # (K, end of the first, end of the other)
            as_far = numpy.abs(numpy.abs(ends) - abs(first[-1] - first[0])) < SAME_DISTANCE
            others, as_far = others[some := as_far.any(axis=(1, 2))], as_far[some]
            distances = _distances(first) if len(others) else nothing
            clear = _clear(others, distances, DISC_ROOM)
            for second, fitting in zip(others[clear], as_far[clear], strict=True):
                of_first, of_second = random.choice(numpy.argwhere(fitting))
                apart = numpy.stack([first[-of_first], second[-of_second]])
                return first, second, numpy.minimum(distances, _distances(second)), apart
    raise ValueError(f"found no room for two curves of {DASHES} dashes")


def _apart(curves: ndarray, count: int) -> list[ndarray]:
    """The first ones that keep apart from each other, as many as there is room for."""
    chosen: list[ndarray] = []
    while len(curves) and len(chosen) < count:
        chosen.append(curves[0])
        to_chosen = numpy.abs(curves[:, :, None] - curves[0]).min(axis=(1, 2))
        curves = curves[to_chosen >= APART]
    return chosen


def _candidates(random: Random, dashes: int, distances: ndarray) -> ndarray:
    """(K, 2 dashes + 1): curves as points half a step apart, away from the border, from themselves and from the others."""
    turns = numpy.zeros((CANDIDATES, dashes, 2))
    turns[:, :, 0] = random.uniform(-MOST_TURN, MOST_TURN, (CANDIDATES, dashes))  # the other half goes straight on
    turns[:, 0, 0] = random.uniform(0, 2 * numpy.pi, CANDIDATES)
    steps = (DASH + GAP) / 2 * numpy.exp(1j * turns.reshape(CANDIDATES, -1).cumsum(axis=1))
    curves = numpy.concatenate([numpy.zeros((CANDIDATES, 1)), steps.cumsum(axis=1)], axis=1)
    # Each goes to a random place of those where it fits, rather than to any until it does.
    corner, far = (pick(curves.real, axis=1) + 1j * pick(curves.imag, axis=1) for pick in (numpy.min, numpy.max))
    room = (1 + 1j) * (SIDE - 2 * BORDER) - (far - corner)
    spot = room.real * random.random(CANDIDATES) + 1j * room.imag * random.random(CANDIDATES)
    curves = (curves + ((1 + 1j) * BORDER - corner + spot)[:, None])[(room.real >= 0) & (room.imag >= 0)]
    curves = curves[_clear(curves, distances)]
    to_self = numpy.abs(curves[:, :, None] - curves[:, None, :])[:, _far_along(curves.shape[1])]
    return curves[to_self.min(axis=1, initial=SIDE) >= APART]


def _clear(curves: ndarray, distances: ndarray, at_ends: float = 0) -> ndarray:
    """(K,) bool: all points are in cells of the map that are far enough from what is there, the ends a little further."""
    cells = (curves.imag * CELLS).astype(int), (curves.real * CELLS).astype(int)
    far = distances[cells]
    return (far.min(axis=1) >= APART) & (far[:, [0, -1]].min(axis=1) >= APART + at_ends)


@functools.cache
def _far_along(points: int) -> ndarray:
    index = numpy.arange(points)
    return abs(index[:, None] - index) * (DASH + GAP) / 2 > 2 * APART


def _distances(curve: ndarray) -> ndarray:
    """From the cells of the map to the nearest point of a long curve; its ends count as nearer, as discs may be there."""
    centres = ((numpy.arange(SIDE * CELLS) + 0.5) / CELLS).astype(numpy.float32)
    x2, y2 = ((centres - axis[:, None].astype(numpy.float32)) ** 2 for axis in (curve.real, curve.imag))
    far = numpy.sqrt(x2[:, None, :] + y2[:, :, None])
    return numpy.minimum(far.min(axis=0), far[[0, -1]].min(axis=0) - DISC_ROOM)


def _paint(curves: list[ndarray], ends: ndarray, size: int) -> ndarray:
    """Brightness falls from full to none within a pixel at the edge of a dash or a disc."""
    scale = size / SIDE
    begin = scale * numpy.concatenate([curve[:-1:2] for curve in curves])
    dash = scale * DASH / (DASH + GAP) * numpy.concatenate([numpy.diff(curve[::2]) for curve in curves])
    pixels = _grid(size)[..., None]
    from_begin = pixels - begin  # (size, size, dashes)
    along = numpy.clip((from_begin * dash.conj()).real / numpy.abs(dash) ** 2, 0, 1)
    to_dash = numpy.abs(from_begin - along * dash).min(axis=-1)
    to_disc = numpy.abs(pixels - scale * ends).min(axis=-1)
    dashes, discs = numpy.clip(scale / 4 + 0.5 - to_dash, 0, 1), numpy.clip(DISC * scale + 0.5 - to_disc, 0, 1)
    return (255 * numpy.maximum(GREY * dashes, WHITE * discs)).astype(numpy.uint8)


@functools.cache
def _grid(size: int) -> ndarray:
    """(size, size): the centres of the pixels."""
    centres = numpy.arange(size) + 0.5
    return centres + 1j * centres[:, None]
