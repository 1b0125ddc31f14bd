"""Hashes, hexadecimal, Base64, URLs and character sets: what Flink gives for them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from expression_kit import column_of, value_of

from headrace.engine.errors import UserFunctionError


@pytest.mark.parametrize(
    ("expression", "value", "kind"),
    [
        ("PARSE_URL('http://user:pw@facebook.com:80/path1/p.php?k1=v1&k2=v2#Ref1','HOST')", "facebook.com", "STRING"),
        ("PARSE_URL('http://user:pw@facebook.com:80/path1/p.php?k1=v1&k2=v2#Ref1','PATH')", "/path1/p.php", "STRING"),
        ("PARSE_URL('http://user:pw@facebook.com:80/path1/p.php?k1=v1&k2=v2#Ref1','QUERY')", "k1=v1&k2=v2", "STRING"),
        ("PARSE_URL('http://user:pw@facebook.com:80/path1/p.php?k1=v1&k2=v2#Ref1','REF')", "Ref1", "STRING"),
        ("PARSE_URL('http://user:pw@facebook.com:80/path1/p.php?k1=v1&k2=v2#Ref1','PROTOCOL')", "http", "STRING"),
        (
            "PARSE_URL('http://user:pw@facebook.com:80/path1/p.php?k1=v1&k2=v2#Ref1','AUTHORITY')",
            "user:pw@facebook.com:80",
            "STRING",
        ),
        (
            "PARSE_URL('http://user:pw@facebook.com:80/path1/p.php?k1=v1&k2=v2#Ref1','FILE')",
            "/path1/p.php?k1=v1&k2=v2",
            "STRING",
        ),
        ("PARSE_URL('http://user:pw@facebook.com:80/path1/p.php?k1=v1&k2=v2#Ref1','USERINFO')", "user:pw", "STRING"),
        ("PARSE_URL('http://user:pw@facebook.com:80/path1/p.php?k1=v1&k2=v2#Ref1','QUERY','k2')", "v2", "STRING"),
        ("PARSE_URL('http://facebook.com?k1=v1&k2=v2','QUERY','k3')", None, "STRING"),
        ("PARSE_URL('http://facebook.com','PATH')", "", "STRING"),
        ("PARSE_URL('http://facebook.com','FILE')", "", "STRING"),
        ("PARSE_URL('http://facebook.com','QUERY')", None, "STRING"),
        ("PARSE_URL('http://facebook.com','NONE')", None, "STRING"),
        ("PARSE_URL('http://facebook.com','host')", None, "STRING"),
        ("PARSE_URL('facebook.com','HOST')", None, "STRING"),
        ("PARSE_URL('foo://a/b','HOST')", None, "STRING"),
        ("PARSE_URL('http://facebook.com/a?x=1','PATH','x')", None, "STRING"),
        ("URL_ENCODE('http://a.b/c d?e=é&f=*~-_.')", "http%3A%2F%2Fa.b%2Fc+d%3Fe%3D%C3%A9%26f%3D*%7E-_.", "STRING"),
        ("URL_DECODE('http%3A%2F%2Fa.b%2Fc+d%3Fe%3D%C3%A9')", "http://a.b/c d?e=é", "STRING"),
        ("URL_DECODE('%zz')", None, "STRING"),
        ("URL_DECODE('abc%2')", None, "STRING"),
        ("URL_DECODE('%ff')", "�", "STRING"),
        *(
            (f"INET_ATON('{text}')", value, "BIGINT")
            for text, value in (
                ("127.0.0.1", 2130706433),
                ("127.1", 2130706433),
                ("1.2.3", 16908291),
                ("5", 5),
                ("255", 255),
                ("0.0.0.0", 0),
                ("255.255.255.255", 4294967295),
                ("01.002.3.0004", 16909060),
                ("1.2.3.00000000000004", 16909060),
                *(
                    (none, None)
                    for none in (
                        "256",
                        "256.1.1.1",
                        "4294967295",
                        "1.65536",
                        "",
                        " 1.2.3.4",
                        "1.2.3.4 ",
                        "a.b.c.d",
                        "1.2.3.4.5",
                        "1..2.3",
                        "1.2.3.4.",
                        ".1.2.3",
                        "+1.2.3.4",
                        "1.-2.3.4",
                        "٣.1.1.1",
                    )
                ),
            )
        ),
        *(
            (f"INET_NTOA({number})", value, "STRING")
            for number, value in (
                ("2130706433", "127.0.0.1"),
                ("0", "0.0.0.0"),
                ("4294967295", "255.255.255.255"),
                ("CAST(5 AS TINYINT)", "0.0.0.5"),
                ("-1", None),
                ("4294967296", None),
                ("CAST(NULL AS BIGINT)", None),
            )
        ),
        ("ASCII('')", 0, "INT"),
        ("ASCII('é')", -61, "INT"),
        ("ASCII('日')", -26, "INT"),
        ("CHR(353)", "a", "STRING"),
        ("CHR(-1)", "", "STRING"),
        ("CHR(0)", "\x00", "STRING"),
        ("CHR(255)", "ÿ", "STRING"),
        ("CHR(256)", "\x00", "STRING"),
        ("ENCODE('hé', 'UTF-8')", b"h\xc3\xa9", "BYTES"),
        ("ENCODE('hé', 'UTF-16')", b"\xfe\xff\x00h\x00\xe9", "BYTES"),
        ("ENCODE('hé', 'UTF-16LE')", b"h\x00\xe9\x00", "BYTES"),
        ("ENCODE('hé', 'US-ASCII')", b"h?", "BYTES"),
        ("ENCODE('hé', 'ISO-8859-1')", b"h\xe9", "BYTES"),
        ("DECODE(ENCODE('hé','UTF-16'), 'UTF-16')", "hé", "STRING"),
        ("DECODE(X'ff41', 'UTF-8')", "�A", "STRING"),
        ("DECODE(X'ff41', 'US-ASCII')", "�A", "STRING"),
        ("TO_BASE64('hello world')", "aGVsbG8gd29ybGQ=", "STRING"),
        ("FROM_BASE64('aGVsbG8gd29ybGQ=')", "hello world", "STRING"),
        ("FROM_BASE64('aGVsbG8gd29ybGQ')", "hello world", "STRING"),
        ("FROM_BASE64('/w==')", "�", "STRING"),
        ("HEX(20)", "14", "STRING"),
        ("HEX('hello,world')", "68656C6C6F2C776F726C64", "STRING"),
        ("HEX(-1)", "FFFFFFFFFFFFFFFF", "STRING"),
        ("HEX(CAST(5 AS TINYINT))", "5", "STRING"),
        ("UNHEX('466C696E6B')", b"Flink", "BYTES"),
        ("UNHEX('zz')", None, "BYTES"),
        ("UNHEX('abc')", b"\x00\xbc", "BYTES"),
        ("UNHEX('')", b"", "BYTES"),
        ("BIN(12)", "1100", "STRING"),
        ("BIN(-1)", "1111111111111111111111111111111111111111111111111111111111111111", "STRING"),
        ("SHA2('a', 256)", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", "STRING"),
        ("SHA2('a', CAST(NULL AS INT))", None, "STRING"),
        ("SHA224('')", "d14a028c2a3a2bc9476102bb288234c415a2b01f828ea62ac5b3e42f", "STRING"),
        ("UNHEX('7')", b"\x00", "BYTES"),
    ],
)
def test_an_expression_has_the_value_and_type_of_flink(expression, value, kind):
    assert value_of(expression) == (value, kind)


def test_what_is_encoded_is_decoded_again():
    texts = ["", "a", "hé日", "x" * 100, None]
    table = pa.table({"t": texts})
    for call in ("URL_DECODE(URL_ENCODE(t))", "FROM_BASE64(TO_BASE64(t))", "DECODE(UNHEX(HEX(t)), 'UTF-8')",
                 "DECODE(ENCODE(t, 'UTF-16'), 'UTF-16')", "JSON_UNQUOTE(JSON_QUOTE(t))"):  # fmt: skip
        assert column_of(call, table).to_pylist() == texts, call


def test_a_character_set_that_is_none_fails():
    with pytest.raises(UserFunctionError, match="there is no character set"):
        column_of("ENCODE('a', 'nonsense')")
