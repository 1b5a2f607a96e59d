"""Reads XML files of others. Document types are refused, because their entities can expand without limit or name other files."""
from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from xml.parsers import expat


def parse_xml(content: bytes) -> ElementTree.Element:
    """Return the root of an XML file without a document type. Raise ElementTree.ParseError or ValueError."""
    parser, builder = expat.ParserCreate(), ElementTree.TreeBuilder()

    def refuse(*declaration: object) -> None:
        raise ValueError("it has a document type (<!DOCTYPE>), whose entities can expand without limit")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.buffer_text = True
    try:
        parser.Parse(content, True)
    except expat.ExpatError as problem:
        raise ElementTree.ParseError(str(problem)) from None
    return builder.close()
