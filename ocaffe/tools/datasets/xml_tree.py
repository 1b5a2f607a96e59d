"""Reads XML files of others. Document types are refused, because their entities can expand without limit or name other files."""
from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from xml.parsers import expat

DEEPEST, MOST_ELEMENTS = 100, 1_000_000


def parse_xml(content: bytes) -> ElementTree.Element:
    """Return the root of an XML file without a document type. Raise ElementTree.ParseError or ValueError."""
    parser, builder = expat.ParserCreate(), ElementTree.TreeBuilder()

    def refuse(*declaration: object) -> None:
        raise ValueError("it has a document type (<!DOCTYPE>), whose entities can expand without limit")

    depth = count = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, count
        depth, count = depth + 1, count + 1
        if depth > DEEPEST or count > MOST_ELEMENTS:
            raise ValueError(f"its elements are nested over {DEEPEST} deep" if depth > DEEPEST else f"it has over {MOST_ELEMENTS:,} elements")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.buffer_text = True
    try:
        parser.Parse(content, True)
    except expat.ExpatError as problem:
        raise ElementTree.ParseError(str(problem)) from None
    return builder.close()
