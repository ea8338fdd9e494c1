"""A picture inside the page: the same pixels as lossless WebP, about half the bytes of the PNG."""

import base64
import io
from pathlib import Path

from lln_lab.report.blocks import Picture


def embed(path: Path, alt: str) -> Picture:
    """Raises ValueError when the file is not a picture."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as missing:
        raise ImportError("pictures in the report need Pillow: pip install lln-lab") from missing
    packed = io.BytesIO()
    try:
        with Image.open(path) as picture:
            picture.save(packed, format="WEBP", lossless=True, method=4)
    except (UnidentifiedImageError, OSError) as reason:
        raise ValueError(f"{path.name} is not a picture ({reason})") from None
    return Picture("data:image/webp;base64," + base64.b64encode(packed.getvalue()).decode(), alt)
