"""Generated pictures whose class is a shape: place, size, rotation, brightness and colours tell nothing.

A shape is {(u, v): f(u, v) <= 1} in its own coordinates, where it fits the unit disc.
"""

import functools
from collections.abc import Callable

import numpy
from numpy import ndarray

Random = numpy.random.Generator
NOISE = 0.08  # standard deviation, where black is 0 and white is 1


def _polygon(sides: int) -> Callable[[ndarray, ndarray], ndarray]:
    angles = 2 * numpy.pi * numpy.arange(sides)[:, None, None] / sides

    def f(u: ndarray, v: ndarray) -> ndarray:
        return (u * numpy.cos(angles) + v * numpy.sin(angles)).max(axis=0) / numpy.cos(numpy.pi / sides)

    return f


def _box(u: ndarray, v: ndarray, width: float, height: float) -> ndarray:
    return numpy.maximum(numpy.abs(u) / width, numpy.abs(v) / height)


SHAPES: dict[str, Callable[[ndarray, ndarray], ndarray]] = {
    "triangle": _polygon(3),
    "square": _polygon(4),
    "disc": lambda u, v: numpy.hypot(u, v),
    "ring": lambda u, v: numpy.abs(numpy.hypot(u, v) - 0.78) / 0.22,
    "half disc": lambda u, v: numpy.maximum(numpy.hypot(u, v), 1 + u),
    "crescent": lambda u, v: numpy.maximum(numpy.hypot(u, v), 1.8 - numpy.hypot(u - 0.5, v)),
    "cross": lambda u, v: numpy.minimum(_box(u, v, 1, 0.3), _box(u, v, 0.3, 1)),
    "star": lambda u, v: numpy.hypot(u, v) / (0.65 + 0.35 * numpy.cos(5 * numpy.arctan2(v, u))),
    "bar": lambda u, v: _box(u, v, 1, 0.25),
    "frame": lambda u, v: numpy.abs(_box(u, v, 0.7, 0.7) - 0.75) / 0.25,
}
NAMES = tuple(SHAPES)


def draw(random: Random, shape: str, size: int, channels: int) -> ndarray:
    """(channels, size, size) uint8: one shape, in another colour than the ground, with noise."""
    angle, radius = random.uniform(0, 2 * numpy.pi), size * random.uniform(0.24, 0.42)
    x0, y0 = random.uniform(radius, size - radius, 2)
    x, y = _grid(size)
    u = ((x - x0) * numpy.cos(angle) + (y - y0) * numpy.sin(angle)) / radius
    v = ((y - y0) * numpy.cos(angle) - (x - x0) * numpy.sin(angle)) / radius
    inside = numpy.clip((1 - SHAPES[shape](u, v)) * radius / 2 + 0.5, 0, 1)
    ground, contrast = random.uniform(0, 1, (channels, 1, 1)), random.uniform(0.3, 0.5, (channels, 1, 1))
    colour = ground + contrast * numpy.where(ground > 0.5, -1, 1)
    noise = NOISE * random.standard_normal((channels, size, size), dtype=numpy.float32)
    picture = ground + (colour - ground) * inside + noise
    return (numpy.clip(picture, 0, 1) * 255).astype(numpy.uint8)


@functools.cache
def _grid(size: int) -> tuple[ndarray, ndarray]:
    y, x = numpy.mgrid[:size, :size] + 0.5
    return x, y
