"""Parser for protobuf's text format, driven by the schema's descriptors. Other modules call it through `text`."""
from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from ocaffe.errors import Error, Place
from ocaffe.formats.braces import wrong_brace
from ocaffe.formats.foreign import told
from ocaffe.formats.tokens import Source, Token, unescape
from ocaffe.proto import is_repeated, is_required

Warn = Callable[[str], None]

PRIVATE = ("source_line", "source_file", "excluded")  # fields that ocaffe sets; in a file they count as unknown fields
# Fields that BVLC has once and a fork as a list -> the field with all values, and whether BVLC's field has the first one then.
LISTS = {
    ("SolverParameter", "device_id"): ("device_ids", True),  # TSN
    ("PoolingParameter", "kernel_size"): ("kernel_size_3d", False),
    ("PoolingParameter", "stride"): ("stride_3d", False),
    ("PoolingParameter", "pad"): ("pad_3d", False),
}
_LONGEST = 64  # digits of a whole number
_MAX_DEPTH = 100  # protobuf's own limit
_LESS_NESTED = "count the braces before this line: a message before it is probably not closed"
_CLOSING = {"{": "}", "<": ">"}
_TRUE, _FALSE = ("true", "True", "t"), ("false", "False", "f")
_NONFINITE = {"inf": math.inf, "infinity": math.inf, "nan": math.nan}
_INTEGERS = {  # C++ type of a field -> lowest and highest value
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_KINDS = {  # C++ type of a field -> the value that its text must have
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "a string in quotes",
    FieldDescriptor.CPPTYPE_MESSAGE: "a message in braces",
    **dict.fromkeys(_INTEGERS, "an integer"),
    **dict.fromkeys(_FLOATS, "a number"),
}

RENAMED = {  # fields of forks -> the fields with the same meaning
    ("TransformationParameter", "crop_height"): "crop_h",  # PSPNet and others
    ("TransformationParameter", "crop_width"): "crop_w",
}


class Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, source: Source, allow_unknown: bool, warn: Warn | None, lines: dict[str, int]) -> None:
        self.source = source
        self.allow_unknown = allow_unknown
        self.warn = warn
        self.lines = lines
        self.tokens = source.tokens()
        self.token = next(self.tokens)

    def read(self, message: Any) -> None:
        self.body(message, "", "end", self.token, 0)

    # tokens

    def advance(self) -> Token:
        token = self.token
        if token.kind != "end":
            self.token = next(self.tokens)
        return token

    def accept(self, *symbols: str) -> str:
        """Consume the next token and return its symbol if it is one of `symbols`; else return ''."""
        return self.advance().text if self.token.kind == "symbol" and self.token.text in symbols else ""

    def error(self, fact: str, token: Token | None = None, fix: str | None = None) -> Error:
        return Error(fact, place=self.source.place((token or self.token).at), fix=fix)

    def shown(self, token: Token | None = None) -> str:
        token = token or self.token
        return "the end of the file" if token.kind == "end" else token.text if len(token.text) <= 40 else token.text[:37] + "..."

    # messages

    def body(self, message: Any, path: str, close: str, opening: Token, depth: int) -> None:
        """Parse the fields of `message` up to and including the token `close`. `path` ends in a dot or is empty."""
        descriptor = message.DESCRIPTOR
        if depth > _MAX_DEPTH:
            raise self.error(f"messages are nested more than {_MAX_DEPTH} deep", fix=_LESS_NESTED)
        while True:
            if self.token.kind == "end" and close == "end":
                break
            if close != "end" and self.accept(close):
                break
            if self.token.kind != "name":
                raise self.not_a_field(descriptor, path, close, opening)
            self.field(message, path, depth)
            self.accept(";", ",")
        for name in _required(descriptor):
            if not message.HasField(name):
                raise self.error(f"{descriptor.name} needs the field {name!r}", opening, f"write {name}: with its value into the message")

    def brace(self, last: int) -> Error | None:
        """Return the error for the brace that shifts what follows, of the lines up to `last`. None if the indentation shows none."""
        found = wrong_brace(self.source.text, last)
        return Error(found.fact, place=Place(self.source.file, found.line), fix=found.fix) if found is not None else None

    def not_a_field(self, descriptor: Descriptor, path: str, close: str, opening: Token) -> Error:
        closes = self.token.kind == "end" or self.token.text in _CLOSING.values()
        shifted = self.brace(self.source.line(self.token.at)) if closes else None
        if shifted is not None:
            return shifted
        if self.token.kind == "end":
            fact = f"the message {path.rstrip('.')!r} that begins here is not closed: the file ends without its {close!r}"
            return self.error(fact, opening, f"write {close} at its end")
        if self.token.text in ("}", ">"):
            fix = f"remove this {self.token.text}, or one before it that is too many"
            return self.error(f"{self.token.text!r} closes a message that was not opened", fix=fix)
        return self.error(f"expected a field of {descriptor.name}, found {self.shown()}", fix=f"write NAME: VALUE, or remove {self.shown()}")

    def field(self, message: Any, path: str, depth: int) -> None:
        name = self.advance()
        descriptor = message.DESCRIPTOR
        field = descriptor.fields_by_name.get(RENAMED.get((descriptor.name, name.text), name.text))
        if field is None or name.text in PRIVATE:
            self.unknown_field(descriptor, name, depth)
            return
        path += field.name
        repeated = is_repeated(field)
        is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        if not self.accept(":") and not (is_message and self.token.text in ("{", "<", "[")):
            fix = f"write {name.text} {{ ... }}" if is_message else f"write {name.text}: VALUE"
            raise self.error(f"expected {'a message in braces' if is_message else ':'} after {name.text!r}, found {self.shown()}", fix=fix)
        several, keeps_first = LISTS.get((descriptor.name, field.name), ("", False))
        if several and (self.token.text == "[" or message.HasField(field.name) or getattr(message, several)):
            self.listed(message, field, descriptor.fields_by_name[several], path, name, depth)
            if not keeps_first:
                message.ClearField(field.name)
            return
        if not repeated and message.HasField(field.name):
            before = self.lines.get(path)
            fact = f"{descriptor.name} has {name.text!r} only once, but it appears again" + (f" (first on line {before})" if before else "")
            raise self.error(fact, name, "merge the two messages into one" if is_message else "keep the line with the right value, and remove the other")
        if self.token.kind == "symbol" and self.token.text == "[" and not repeated:
            fix = f"write one value without brackets: {name.text}: VALUE"
            raise self.error(f"{descriptor.name} has {name.text!r} only once, but this is a list", name, fix)
        self.values(message, field, path, name, depth)

    def listed(self, message: Any, field: Any, several: Any, path: str, name: Token, depth: int) -> None:
        """Parse further values of a field that a fork has as a list. The field itself keeps the first value."""
        found = getattr(message, several.name)
        if message.HasField(field.name) and not found:
            found.append(getattr(message, field.name))
        self.values(message, several, path, name, depth)
        if found:
            setattr(message, field.name, found[0])

    def values(self, message: Any, field: Any, path: str, name: Token, depth: int) -> None:
        """Parse the value of a field, or a list of values in brackets."""
        if not self.accept("["):
            self.value(message, field, path, name, depth)
            return
        if self.accept("]"):
            return
        while True:
            self.value(message, field, path, self.token, depth)
            if self.accept("]"):
                return
            if not self.accept(","):
                fix = "write a comma between values, and ] after the last one"
                raise self.error(f"expected ',' or ']' in the list of {name.text!r}, found {self.shown()}", fix=fix)

    def value(self, message: Any, field: Any, path: str, start: Token, depth: int) -> None:
        """Parse one value of `field` and add it to `message`."""
        repeated = is_repeated(field)
        holder = getattr(message, field.name) if repeated else None
        if holder is not None:
            path += f"[{len(holder)}]"
        line = self.source.line(start.at)
        self.lines[path] = line
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            opening = self.token
            close = _CLOSING.get(self.accept("{", "<"))
            if close is None:
                raise self.mismatch(message.DESCRIPTOR, field, opening)
            inner = holder.add() if holder is not None else getattr(message, field.name)
            inner.SetInParent()
            if "source_line" in inner.DESCRIPTOR.fields_by_name:
                inner.source_line = line
            self.body(inner, path + ".", close, start, depth + 1)
            return
        value = self.scalar(message.DESCRIPTOR, field)
        if value is None:
            return
        if holder is not None:
            holder.append(value)
        else:
            setattr(message, field.name, value)

    # scalars

    def scalar(self, descriptor: Descriptor, field: Any) -> Any:
        """Parse the value of a scalar field. Return None for an unknown enum value that is skipped."""
        kind = field.cpp_type
        start = self.token
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return self.string(descriptor, field)
        negative = bool(self.accept("-"))
        token = self.token
        if token.kind not in ("name", "number"):
            raise self.mismatch(descriptor, field, start)
        self.advance()
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self.enum(descriptor, field, token, negative, start)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            if token.text in _TRUE + _FALSE and not negative:
                return token.text in _TRUE
            number = self.integer(token) if token.kind == "number" and not negative else None
            if number in (0, 1):
                return bool(number)
            raise self.mismatch(descriptor, field, start)
        if token.text in _TRUE + _FALSE and _is_switch(field) and not negative:
            return int(token.text in _TRUE)
        if kind in _INTEGERS:
            number = self.integer(token) if token.kind == "number" else None
            if number is None:
                raise self.mismatch(descriptor, field, start)
            number = -number if negative else number
            low, high = _INTEGERS[kind]
            if not low <= number <= high:
                raise self.error(f"{field.name!r} is {number}, outside {low} to {high}", start, f"write a number from {low} to {high}")
            return number
        value = self.floating(field.name, token)
        if value is None:
            raise self.mismatch(descriptor, field, start)
        return -value if negative else value

    def string(self, descriptor: Descriptor, field: Any) -> str | bytes:
        start = self.token
        if start.kind != "string":
            raise self.mismatch(descriptor, field, start)
        data = b""
        while self.token.kind == "string":  # adjacent strings are concatenated
            data += unescape(self.advance(), self.source)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return data
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.error(f"the string of {field.name!r} is not UTF-8", start, "save the file as UTF-8") from None

    def enum(self, descriptor: Descriptor, field: Any, token: Token, negative: bool, start: Token) -> int | None:
        values = field.enum_type.values_by_name
        if token.kind == "name" and not negative:
            if token.text in values:
                return values[token.text].number
        else:
            number = self.integer(token) if token.kind == "number" else None
            if number is None:
                raise self.mismatch(descriptor, field, start)
            number = -number if negative else number
            low, high = _INTEGERS[FieldDescriptor.CPPTYPE_INT32]
            if low <= number <= high and number in field.enum_type.values_by_number:  # protobuf's lookup drops higher bits
                return number
        fact = f"{descriptor.name} has no {token.text!r} for its {field.name!r}"
        if self.allow_unknown:
            self.tell(f"{self.source.place(start.at)}: {fact}; it is ignored")
            return None
        known = told(descriptor.name, token.text)
        if known is not None:
            raise self.error(f"{fact}: {known[0]}", start, known[1])
        raise self.error(fact, start, _guess(token.text, values) or f"write {field.name}: and one of {', '.join(values)}")

    def integer(self, token: Token) -> int | None:
        """Return the value of a decimal, hexadecimal or octal integer token, or None if it is not an integer."""
        text = token.text.lower()
        self.bound(token)
        if text.startswith("0x"):
            return int(text, 16)
        if not text.isdigit():
            return None
        if text.startswith("0") and len(text) > 1:
            try:
                return int(text, 8)
            except ValueError:
                fix = f"write {text.lstrip('0')}, without the 0 in front"
                raise self.error(f"{text} begins with 0, so it is octal, but has a digit 8 or 9", token, fix) from None
        return int(text)

    def bound(self, token: Token) -> None:
        """Raise Error for a number that Python may refuse to convert, or to show in an error: it has thousands of digits."""
        if len(token.text) > _LONGEST:
            raise self.error(f"{token.text[:20]}... has {len(token.text):,} digits", token, f"write a number of at most {_LONGEST} digits")

    def floating(self, name: str, token: Token) -> float | None:
        if token.kind == "name":
            return _NONFINITE.get(token.text.lower())
        text = token.text.lower()
        if text.startswith("0x") or (text.isdigit() and text.startswith("0") and text.strip("0")):
            self.bound(token)
            # Caffe's protobuf read these as hexadecimal and octal; newer releases reject them. The meaning is ambiguous, so it is an error.
            meant = int(text, 16) if text.startswith("0x") else text.lstrip("0")
            raise self.error(f"{name!r} is {token.text}, which is not a decimal number", token, f"write it in decimal digits: {name}: {meant}")
        return float(text.rstrip("f"))

    def mismatch(self, descriptor: Descriptor, field: Any, token: Token) -> Error:
        """Return the error for a value at `token` that does not have the field's type."""
        wanted = _KINDS.get(field.cpp_type) or f"a name without quotes ({', '.join(v.name for v in field.enum_type.values[:6])}, ...)"
        fix = None
        if field.name == "type" and descriptor.name == "V1LayerParameter" and token.kind == "string":
            fix = "write new-style layers in `layer { }`, not in `layers { }`"
        elif field.name == "type" and descriptor.name == "LayerParameter" and token.kind == "name":
            fix = f'write type: "..." (old-style layers with a type like {token.text} belong in `layers {{ }}`)'
        elif field.enum_type and token.text.strip("\"'") in field.enum_type.values_by_name:
            fix = f"write {field.name}: {token.text[1:-1]}"
        elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING and token.kind == "name":
            fix = f'write {field.name}: "{token.text}"; MyCaffe alone reads words without quotes'
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            fix = f"write {field.name} {{ ... }}"
        fix = fix or f"write {field.name}: and {wanted}"
        return self.error(f"{field.name!r} needs {wanted}, found {self.shown(token)}", token, fix)

    # unknown fields

    def unknown_field(self, descriptor: Descriptor, name: Token, depth: int) -> None:
        fact = f"{descriptor.name} has no field {name.text!r}"
        public = {key: field for key, field in descriptor.fields_by_name.items() if key not in PRIVATE}
        if not self.allow_unknown:
            known = told(descriptor.name, name.text)
            if known is not None:
                raise self.error(f"{fact}: {known[0]}", name, known[1])
            shifted = self.brace(self.source.line(name.at)) if _elsewhere(descriptor, name.text) else None
            if shifted is not None:
                raise shifted
            if depth and name.text in ("layer", "layers") and self.token.text == "{":
                raise self.error("a layer begins within another message", name, "write } before this line, which closes the layer above")
            raise self.error(fact, name, _confused(descriptor, name.text, self.source.text) or _hint(name.text, public))
        self.tell(f"{self.source.place(name.at)}: {fact}; it is ignored")
        self.accept(":")
        self.skip(name, depth)

    def skip(self, start: Token, depth: int) -> None:
        """Skip one value: a message, a list or a scalar."""
        if depth > _MAX_DEPTH:
            raise self.error(f"messages are nested more than {_MAX_DEPTH} deep", fix=_LESS_NESTED)
        opening = self.accept("{", "<", "[")
        if opening == "[":
            while not self.accept("]"):
                self.skip(start, depth + 1)
                self.accept(",")
        elif opening:
            while not self.accept(_CLOSING[opening]):
                if self.token.kind != "name":
                    fix = f"close the message by {_CLOSING[opening]}"
                    raise self.error(f"expected a field or {_CLOSING[opening]!r} in the message of {start.text!r}, found {self.shown()}", fix=fix)
                self.advance()
                self.accept(":")
                self.skip(start, depth + 1)
                self.accept(";", ",")
        elif self.token.kind == "string":
            while self.token.kind == "string":
                self.advance()
        else:
            self.accept("-")
            if self.token.kind not in ("name", "number"):
                raise self.error(f"expected the value of {start.text!r}, found {self.shown()}", fix=f"write a value after {start.text}")
            self.advance()

    def tell(self, warning: str) -> None:
        if self.warn:
            self.warn(warning)


def _is_switch(field: Any) -> bool:
    """Whether a number is 0 or 1 by default. Forks have such fields as bool, and their files say true and false."""
    return field.has_default_value and field.default_value in (0, 1)


@functools.cache
def _required(descriptor: Descriptor) -> tuple[str, ...]:
    return tuple(field.name for field in descriptor.fields if is_required(field))


def _guess(name: str, known: Any) -> str | None:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else None


_TOLD_APART = {  # expected message -> (the message that was possibly given instead, fields that show that it was not, the remedy)
    "SolverParameter": ("NetParameter", "(?!)", "this looks like a net; give the solver, whose field `net` names it"),
    "NetParameter": ("SolverParameter", r"layers?|input", "this looks like a solver; give the net that its field `net` names"),
}


def _elsewhere(descriptor: Descriptor, name: str) -> bool:
    """Whether another message has the field `name`, so that a brace before it may be missing."""
    return any(name in each.fields_by_name for each in descriptor.file.message_types_by_name.values())


def _confused(descriptor: Descriptor, name: str, text: str) -> str | None:
    """Return the remedy if the field `name` and the `text` of the file show that a net was given for a solver or the reverse; else None."""
    other, own, fix = _TOLD_APART.get(descriptor.name, ("", "", ""))
    confused = other and name in descriptor.file.message_types_by_name[other].fields_by_name
    return fix if confused and not re.search(rf"^\s*({own})\s*[:{{]", text, re.M) else None


def _hint(name: str, fields: dict[str, Any]) -> str:
    """Return a suggestion for the unknown field `name`, given the fields of its message."""
    guess = _guess(name, fields)
    if guess:
        return guess
    homes = [key for key, field in fields.items() if field.message_type and name in field.message_type.fields_by_name]
    if homes:
        return f"it is a field of {', '.join(homes[:4])}{' and others' if len(homes) > 4 else ''}: write {homes[0]} {{ {name}: ... }}"
    return "remove it, or add --allow-unknown-fields to the command, which ignores such fields"
