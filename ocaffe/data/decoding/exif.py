"""The orientation in the EXIF data of image files, as OpenCV reads it."""
from __future__ import annotations

import struct

EXIF = b"Exif\0\0"  # the begin of EXIF data in JPEG files
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION = 0x0112
_ENTRY = 12  # bytes of an entry: tag, type, count, value


def exif_orientation(exif: bytes) -> int:
    """Return the orientation, 1 to 8; 1 if the data are damaged or have another value.

    The data are a TIFF header and directories. Like OpenCV this reads only the first directory, and takes the value for 16 bits, whatever its type.
    """
    exif = exif.removeprefix(EXIF)
    order = _ORDERS.get(exif[:4])
    try:
        if order is not None:
            (first,) = struct.unpack_from(f"{order}I", exif, 4)
            (entries,) = struct.unpack_from(f"{order}H", exif, first)
            for at in range(first + 2, first + 2 + _ENTRY * entries, _ENTRY):
                tag, value = struct.unpack_from(f"{order}H6xH", exif, at)
                if tag == _ORIENTATION:
                    return int(value) if 1 <= value <= 8 else 1
    except struct.error:  # an entry is beyond the end
        pass
    return 1
