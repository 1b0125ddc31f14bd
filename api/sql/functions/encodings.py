"""Functions that write texts, numbers and bytes in another way: hashes, hexadecimal, Base64, URLs, character sets.

Source: Flink's documentation ("String Functions", "Hash Functions"); Java's ``URLEncoder``, ``URL``, ``Charset``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus, urlsplit

import pyarrow as pa

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name
from .coercion import cast_to, is_text
from .contract import Function, Typed, made, require, row_by_row

__all__ = ["FUNCTIONS"]

_TEXT = pa.string()
_BYTES = pa.binary()
_INT = pa.int32()

_CHARSETS = {
    "US-ASCII": "ascii", "ISO-8859-1": "latin-1", "UTF-8": "utf-8", "UTF-16BE": "utf-16-be", "UTF-16LE": "utf-16-le",
    "UTF-16": "utf-16",
}  # fmt: skip


def _rows(name: str, function: Any, kind: pa.DataType, *operands: Typed) -> Typed:
    return made(name, row_by_row(function, kind), kind, *operands)


def _text(value: Typed) -> Typed:
    return cast_to(require(value, is_text, "a text"), _TEXT)


def _of_text(name: str, function: Callable[[str], Any], meaning: str, kind: pa.DataType = _TEXT) -> Function:
    return Function(name, f"{name}(text)", lambda value: _rows(name, function, kind, _text(value)), 1, 1, meaning)


# -- hashes ------------------------------------------------------------------------------------------------------------


def _hash(text: str, algorithm: str) -> str:
    return hashlib.new(algorithm, text.encode(), usedforsecurity=False).hexdigest()


def _hash_function(name: str) -> Function:
    algorithm = name.lower()
    return _of_text(name, lambda text: _hash(text, algorithm), f"The {name} hash of a text, in hexadecimal digits.")


def _sha2(text: str, bits: int) -> str:
    if bits not in (224, 256, 384, 512):
        message = f"there is no SHA-2 of {bits} bits; 224, 256, 384 and 512 are"
        raise ValueError(message)
    return _hash(text, f"sha{bits}")


def _bind_sha2(value: Typed, bits: Typed) -> Typed:
    return _rows("SHA2", _sha2, _TEXT, _text(value), require(bits, pa.types.is_integer, "an integer"))


# -- numbers and bytes -------------------------------------------------------------------------------------------------


def _bind_hex(value: Typed) -> Typed:
    if is_text(value.kind):
        return _rows("HEX", lambda text: text.encode().hex().upper(), _TEXT, value)
    return _of_bits("HEX", value, "X")


def _of_bits(name: str, value: Typed, spec: str) -> Typed:
    number = cast_to(require(value, pa.types.is_integer, "an integer"), pa.int64())
    return _rows(name, lambda one: format(one & 0xFFFFFFFFFFFFFFFF, spec), _TEXT, number)


def _unhex(text: str) -> bytes | None:
    # The first digit of an odd number of them is left out, and a zero byte stands for it.
    padded = text if len(text) % 2 == 0 else f"00{text[1:]}"
    return bytes.fromhex(padded) if re.fullmatch("[0-9a-fA-F]*", text) else None


def _ascii(text: str) -> int:
    first = text.encode()[:1]
    return int.from_bytes(first, "big", signed=True) if first else 0


def _chr(number: int) -> str:
    return chr(number % 256) if number >= 0 else ""


def _inet_aton(text: str) -> int | None:
    """An address of less than four parts has zeros before its last one."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){0,3}", text):
        return None
    *first, last = map(int, text.split("."))
    parts = [*first, *[0] * (3 - len(first)), last]
    return None if max(parts) > 255 else int.from_bytes(bytes(parts), "big")


def _inet_ntoa(number: int) -> str | None:
    return ".".join(map(str, number.to_bytes(4, "big"))) if 0 <= number < 1 << 32 else None


def _bind_inet_ntoa(value: Typed) -> Typed:
    number = cast_to(require(value, pa.types.is_integer, "an integer"), pa.int64())
    return _rows("INET_NTOA", _inet_ntoa, _TEXT, number)


# -- character sets ----------------------------------------------------------------------------------------------------


def _codec(charset: str) -> str:
    if charset.upper() not in _CHARSETS:
        message = f"there is no character set {charset!r}; {', '.join(_CHARSETS)} are"
        raise ValueError(message)
    return _CHARSETS[charset.upper()]


def _encoded(text: str, charset: str) -> bytes:
    codec = _codec(charset)
    return b"\xfe\xff" + text.encode("utf-16-be") if codec == "utf-16" else text.encode(codec, "replace")


def _decoded(data: bytes, charset: str) -> str:
    codec = _codec(charset)
    if codec == "utf-16" and data[:2] not in (b"\xfe\xff", b"\xff\xfe"):
        codec = "utf-16-be"
    return data.decode(codec, "replace")


def _bind_encode(value: Typed, charset: Typed) -> Typed:
    return made("ENCODE", row_by_row(_encoded, _BYTES), _BYTES, _text(value), charset=_text(charset))


def _bind_decode(value: Typed, charset: Typed) -> Typed:
    data = cast_to(require(value, pa.types.is_binary, "BYTES"), _BYTES)
    return made("DECODE", row_by_row(_decoded, _TEXT), _TEXT, data, charset=_text(charset))


def _to_base64(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _from_base64(text: str) -> str:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode("utf-8", "replace")


def _bind_to_base64(value: Typed) -> Typed:
    if not (is_text(value.kind) or pa.types.is_binary(value.kind) or pa.types.is_null(value.kind)):
        message = f"expected a text or BYTES; got {sql_name(value.kind)}"
        raise SqlError(message)
    return _rows("TO_BASE64", _to_base64, _TEXT, value)


# -- URLs --------------------------------------------------------------------------------------------------------------


def _url_encoded(text: str) -> str:
    return quote_plus(text, safe="*").replace("~", "%7E")


def _url_decoded(text: str) -> str | None:
    if re.search("%(?![0-9a-fA-F]{2})", text):
        return None
    return re.sub(
        "(?:%[0-9a-fA-F]{2})+",
        lambda found: binascii.unhexlify(found.group().replace("%", "")).decode("utf-8", "replace"),
        text.replace("+", " "),
    )


_PROTOCOLS = ("http", "https", "ftp", "file", "jar", "mailto")


def _url_part(url: str, part: str, key: str | None = None) -> str | None:
    try:
        parts = urlsplit(url.strip(), allow_fragments=True)
    except ValueError:
        return None
    if parts.scheme not in _PROTOCOLS:
        return None
    has_query = "?" in url.split("#", 1)[0]
    if part == "QUERY" and key is not None:
        found = re.search(f"(?:^|&){re.escape(key)}=([^&]*)", parts.query)
        return found.group(1) if found else None
    if key is not None:
        return None
    user, at, host = parts.netloc.rpartition("@")
    values: dict[str, str | None] = {
        "HOST": re.sub(r":\d*$", "", host),
        "PATH": parts.path,
        "QUERY": parts.query if has_query else None,
        "REF": parts.fragment if "#" in url else None,
        "PROTOCOL": parts.scheme,
        "AUTHORITY": parts.netloc,
        "FILE": f"{parts.path}?{parts.query}" if has_query else parts.path,
        "USERINFO": user if at else None,
    }
    return values.get(part)


def _bind_parse_url(*texts: Typed) -> Typed:
    return _rows("PARSE_URL", _url_part, _TEXT, *map(_text, texts))


FUNCTIONS = (
    *map(_hash_function, ("MD5", "SHA1", "SHA224", "SHA256", "SHA384", "SHA512")),
    Function("SHA2", "SHA2(text, bits)", _bind_sha2, 2, 2, "A hash of the SHA-2 family, of 224, 256, 384 or 512 bits."),
    Function("BIN", "BIN(number)", lambda value: _of_bits("BIN", value, "b"), 1, 1, "An integer in binary digits."),
    Function("HEX", "HEX(number or text)", _bind_hex, 1, 1,
             "An integer, or the bytes of a text, in hexadecimal digits."),
    _of_text("UNHEX", _unhex, "The bytes of hexadecimal digits; null if they are none.", _BYTES),
    _of_text("ASCII", _ascii, "The number of the first byte, from -128 to 127.", _INT),
    Function("CHR", "CHR(number)",
             lambda value: _rows("CHR", _chr, _TEXT, require(value, pa.types.is_integer, "an integer")), 1, 1,
             "The character of a number, which is taken modulo 256."),
    Function("ENCODE", "ENCODE(text, charset)", _bind_encode, 2, 2, "The bytes of a text in a character set."),
    Function("DECODE", "DECODE(bytes, charset)", _bind_decode, 2, 2, "The text of bytes in a character set."),
    Function("TO_BASE64", "TO_BASE64(text)", _bind_to_base64, 1, 1, "A text, or BYTES, in Base64."),
    _of_text("FROM_BASE64", _from_base64, "The text that is written in Base64."),
    _of_text("URL_ENCODE", _url_encoded, "A text as it stands in the query of a URL."),
    _of_text("URL_DECODE", _url_decoded, "What a text in the query of a URL means; null if it is broken."),
    _of_text("INET_ATON", _inet_aton, "The number of an IPv4 address; null if it is none. '127.1' is 127.0.0.1.",
             pa.int64()),
    Function("INET_NTOA", "INET_NTOA(number)", _bind_inet_ntoa, 1, 1,
             "The IPv4 address of a number; null if it has none."),
    Function("PARSE_URL", "PARSE_URL(url, part[, key])", _bind_parse_url, 2, 3,
             "HOST, PATH, QUERY (or a key of it), REF, PROTOCOL, AUTHORITY, FILE or USERINFO of a URL."),
)  # fmt: skip
