"""Weights and images in a bundle: headers and sizes are checked before a library reads them."""

from __future__ import annotations

import io
import math
import struct
import zlib
from typing import Annotated, BinaryIO, Literal

from pydantic import Field, TypeAdapter, ValidationError

from bench.bundle.schema import Failed, Strict, TensorName, first_error, load_json

MOST_HEADER = 2**20
WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Size in bytes of each dtype that networks use."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = {1: (0, "L"), 3: (2, "RGB")}
"""Number of channels to the colour type of PNG and the mode of Pillow."""
_Size = Annotated[int, Field(ge=0, le=2**40)]


class Tensor(Strict):
    """One tensor in the header of a safetensors file."""

    dtype: Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"]
    shape: Annotated[list[_Size], Field(max_length=8)]
    data_offsets: tuple[_Size, _Size]


_HEADER = TypeAdapter(dict[TensorName, Tensor])


def check_weights(name: str, stream: BinaryIO, size: int) -> None:
    """Check that a safetensors file has a small header whose tensors fill the rest of the file exactly.

    Raises:
        Failed: the file does not.
    """
    start = stream.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= min(MOST_HEADER, size - 8):
        raise Failed(f"{name}: its header has {length:,} bytes; expected at most {MOST_HEADER:,} and the file's size")
    header = stream.read(length)
    load_json(header, f"the header of {name}")
    try:
        tensors = _HEADER.validate_json(header)
    except ValidationError as error:
        raise Failed(f"the header of {name}: {first_error(error)}") from None
    end = 0
    for tensor in sorted(tensors.values(), key=lambda each: each.data_offsets):
        first, last = tensor.data_offsets
        if first != end or last - first != math.prod(tensor.shape) * WIDTHS[tensor.dtype]:
            raise Failed(f"{name}: its header declares tensors that do not follow one another in the file")
        end = last
    if end != size - 8 - length:
        raise Failed(f"{name}: its header declares {end:,} bytes of tensors; the file has {size - 8 - length:,}")


def check_image(name: str, content: bytes, shape: tuple[int, int, int]) -> None:
    """Check that a PNG file has one image of the student's shape and nothing else.

    Raises:
        Failed: not a PNG file, another size, kind or chunk, or damaged data.
    """
    channels, height, width = shape
    if channels not in COLOURS:
        raise Failed(f"{name}: images of {channels} channels are not PNG files")
    colour, mode = COLOURS[channels]
    stream, chunks = io.BytesIO(content), list[tuple[bytes, bytes]]()
    if stream.read(8) != SIGNATURE:
        raise Failed(f"{name} is not a PNG file")
    while header := stream.read(8):
        length, kind = int.from_bytes(header[:4], "big"), header[4:]
        data, checksum = stream.read(length), stream.read(4)
        if len(data) != length or checksum != zlib.crc32(kind + data).to_bytes(4, "big"):
            raise Failed(f"{name}: a chunk of it is damaged")
        chunks.append((kind, data))
    kinds = [kind for kind, _ in chunks]
    if kinds[:1] != [b"IHDR"] or kinds[-1:] != [b"IEND"] or set(kinds[1:-1]) != {b"IDAT"}:
        raise Failed(f"{name}: it has other chunks than IHDR, IDAT and IEND, such as a text")
    if chunks[0][1] != struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0) or chunks[-1][1]:
        raise Failed(f"{name}: it is not a {mode} image of {width}x{height} pixels with 8 bits each")
    expected = height * (1 + width * channels)
    decoder = zlib.decompressobj()
    try:
        pixels = decoder.decompress(b"".join(data for _, data in chunks[1:-1]), expected + 1)
    except zlib.error:
        raise Failed(f"{name}: its pixels cannot be decompressed") from None
    filters = set(pixels[:: 1 + width * channels])
    if len(pixels) != expected or not decoder.eof or decoder.unused_data or filters - set(range(5)):
        raise Failed(f"{name}: its pixels are not {expected:,} bytes")
