"""Passwords are not shown: what is masked in texts, which places are refused, and that no error of ours shows one."""

import base64
import json
import pickle
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.credentials import is_secret, masked, secret_in, without_secrets
from headrace.state.errors import ConfigurationError, StorageError
from headrace.state.files.filesystem import absolute_uri, filesystem_for

TEXTS = [
    "postgresql://user:p4ss@host:5432/db",
    "postgresql://user:p4ss@more p4ss@host/db",
    "s3://KEY:p4/ss@p4ss@bucket/dir",
    "could not connect to postgres://u:p4ss@h/d?x=1: no",
    "abfs://:p4ss@account/container",
    "host=h password=p4ss user=u",
    "host=h PASSWORD = 'p4ss with \\' p4ss' user=u",
    r"host=h password=blank\ p4ss user=u",
    "postgresql://h/d?user=u&password=p4ss&x=1",
    "s3://bucket/x?secret_key=p4ss",
    "https://h/x?sv=1&sig=p4ss%3D",
    "fs.s3a.secret.key=1 aws_secret_access_key=p4ss",
    "unknown options {'user': 'u', 'password': 'p4ss'}",
    'cannot parse {"access_key": "p4ss more p4ss", "n": 1}',
    r"""kwargs b'{\"password\": \"p4ss\"}'""",
    "dsn=password=p4ss",
    "Endpoint=sb://x/;SharedAccessSignature=p4ss;AccountKey=p4ss==",
    "headers {'Authorization': 'Bearer p4ss.p4ss'} and Authorization: Basic p4ss=",
    "conf.token=p4ss",
    "bad auth_token: p4ss",
    "GITHUB_TOKEN=p4ss hf-token=p4ss {'refreshToken': 'p4ss'} --api-token p4ss",
    "DB_PASS=p4ss db_pwd: p4ss pass=p4ss encryption_key=p4ss",
    "https://bucket/key?X-Amz-Expires=60&X-Amz-Signature=p4ss",
    "password: p4ss",
    "  db.password:\tp4ss, user: u",
    "password:p4ss",
    "Passphrase : 'p4ss p4ss'",
    "- secret_key: p4ss\n  name: x",
    "X-Api-Key: p4ss",
    "psql --password p4ss -h host",
    "psql --db-password   p4ss",
    "tool -password p4ss",
    "tool --token=p4ss --x",
    "Command '['psql', '--password', 'p4ss', 'db']' returned non-zero exit status 1",
    '["psql", "--auth-token", "p4ss"]',
    "[('user', 'u'), ('password', 'p4ss')]",
    "WITH ('connector' = 'jdbc', 'password' = 'p4ss', 'x' = 'y')",
    "WITH ('db.password'='p4ss ''p4ss')",
    "PASSWORD=p4ss PGPASSWORD='p4ss' make",
    "export AWS_SECRET_ACCESS_KEY=p4ss",
    "Authorization: Bearer p4ss",
    "authorization: p4ss",
    "proxy-authorization = Digest p4ss",
    '{"Authorization":"Custom-1 p4ss"}',
    "[('Authorization', 'Bearer p4ss')]",
    '{"password": "p4ss", "password":"p4ss"}',
    '{\n  "password" : "p4ss \\" p4ss"\n}',
    r'"{\"password\": \"p4ss p4ss\"}"',
    "Cookie: sid=p4ss; theme=p4ss",
    "Set-Cookie: sid=p4ss; Path=/; HttpOnly",
    "> cookie: sid='p4ss'; b=p4ss and more",
    "{'Cookie': 'sid=p4ss; b=p4ss'} [(b'cookie', b'sid=p4ss')]",
    "cookies={'sid': 'p4ss', 'b': 'p4ss'}",
    "session_cookie=p4ss <Cookie sid=p4ss for host/> <SimpleCookie: sid='p4ss'> <Morsel: sid=p4ss; Path=/>",
    "curl -H 'Cookie: sid=p4ss' --cookie 'sid=p4ss' -u me:p4ss --user=me:p4ss ['-u', 'me:p4ss']",
    "refused: Bearer p4ss.p4ss",
    "Bearer p4ss",
    "'Bearer abcp4ss' BEARER p4ss-p4ss",
    "x-y: 'Basic p4ss='",
    "TOKEN=Bearer p4ss api_key: Bearer p4ss",
    'Authorization: Digest username="u", realm="r", response="p4ss"',
    "Authorization: Bearer 'p4ss', ['Authorization', 'Custom p4ss']",
    "Authorization:\n  Bearer p4ss",
    "password=['p4ss', \"p4]ss\"] password=b'p4ss' passwords={'a': ('p4ss', 'p4ss')}",
    "password='''p4ss''' password='it''s p4ss' password == 'p4ss' password != p4ss",
    "password => p4ss password := p4ss {'password' => 'p4ss'}",
    "password=SecretStr('p4ss') api_key=Secret(value='p4ss')",
    "auth=('me', 'p4ss') auth=HTTPBasicAuth('me', 'p4ss')",
    "<password>p4ss</password> <x:secret-key a='b'> p4ss </x:secret-key>",
    "<property><name>fs.s3a.secret.key</name>\n  <value>p4ss</value></property>",
    "password: |\n  p4ss\n\n  p4ss\nnext: 1",
    "- secret_key: >-\n    p4ss\n  name: x",
]


@pytest.mark.parametrize("text", TEXTS)
def test_passwords_are_masked(text):
    assert "p4ss" not in masked(text)
    assert "***" in masked(text)
    assert masked(masked(text)) == masked(text)


@pytest.mark.parametrize("text", ["x: 1\n  token: p4ss", "token: p4ss", "{token: p4ss}", repr("1\ntoken: p4ss")])
def test_names_that_may_mean_something_else_are_secrets_without_a_word_before_them(text):
    assert "p4ss" not in masked(text)
    assert "p4ss" in masked("a sig: p4ss")


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8265/jobs", "s3://bucket/dir (ask me@home)", "at 12:30:05, x: 1, f(a: int)",
        "unexpected token: 'x' at 3", "no signature: (a, b)", "unknown columns 'password', 'user'", "run --verbose now",
        "a -- b", "max_tokens=5, pass_count=3", "bad next_token: x",
        "authorization failed for user u", "ended --password --user u", "secret://store/x", "hdfs://user@host:9000/dir",
        "no job at host:6379, see a@b",
        "basic types are supported", "Basic block 3", "a bearer of bad news", "Bearer token has expired.", "basic auth",
        "Bearer authentication is required", "no cookie: the jar is empty", "accept cookies",
        "docker run -u 1000:1000 x",
        "invalid token at\n  line 3", "auth=basic, auth: none", "wrong password:\n  at line 3",
        "a basic well-known rule",
        "<name>fs.path</name> <value>x</value>, <b>x</b>", "Basic 1.5", "f(basic, x=[1, (2, 3)])", "BASIC MODE",
        "the basic idea: read; the basic x", "use -u name", "<Task sid=1 for x>",
        "3 tokens were taken: signal=9", "cannot reach http://head:8265 or me@home", "a = b, c=d", "memory://store/x",
    ],
)  # fmt: skip
def test_other_texts_stay_as_they_are(text):
    assert masked(text) == text


@given(st.text(alphabet="aB3@:/ %#?&=", max_size=12))
def test_a_url_shows_no_part_of_any_password(password):
    shown = masked(f"postgresql://user:QQ{password}ZZ@host/db")
    assert "QQ" not in shown
    assert "ZZ" not in shown


_NAMES = [
    "password",
    "db.password",
    "PASSWORD",
    "DB_PASSWD",
    "client-secret",
    "api_key",
    "aws_secret_access_key",
    "passphrase",
]
_FORMS = [
    "{name}: {value}", "{name}={value}", "{name} = '{value}'", "--{name} {value}", "--{name}={value}", "{name}:{value}",
    '{{"{name}": "{value}"}}', "{{'{name}': '{value}'}}", "{name}: '{value}'", "['--{name}', '{value}']",
    "('{name}', '{value}')",
]  # fmt: skip
_VISIBLE = st.characters(codec="ascii", exclude_characters="'\"\\&,;*", categories=["L", "N", "P", "S"])


@given(
    st.sampled_from(_FORMS),
    st.sampled_from(_NAMES),
    st.text(alphabet=_VISIBLE).map(lambda word: f"Q{word}Z"),
    st.sampled_from(["", "could not connect: ", "a\n  ", "x=1, ", "{'a': ", "$ run ", "[", "-- "]),
    st.sampled_from(["", " more", "\nnext: 1", ", x=1", "}"]),
)
def test_a_secret_is_masked_wherever_it_stands(form, name, secret, before, after):
    text = before + form.format(name=name, value=secret) + after
    shown = masked(text)
    assert secret not in shown
    assert shown.startswith(before)
    assert shown.endswith(after.lstrip("}"))
    assert masked(shown) == shown


_WAYS = [
    "Cookie: sid={0}", "cookie: a=b; sid={0}", "Set-Cookie: sid={0}; Path=/", "{{'Cookie': 'a=b; sid={0}'}}",
    '{{"cookie": "sid={0}"}}', "[('Set-Cookie', 'sid={0}; Secure')]", "--cookie 'sid={0}'", "cookies={{'sid': '{0}'}}",
    "curl -H 'Cookie: sid={0}'", "Authorization: Bearer {0}", "Authorization: {0}", "'Bearer {0}'", '"Basic {1}"',
    "Bearer {0}7", "Basic {1}", "x={{'h': 'Bearer {0}'}}", "h = Bearer {0}.{0}=", "TOKEN='Bearer {0}'",
    "TOKEN=Bearer {0}",
    "Authorization: Basic {1}", "Authorization: Digest a=\"b\", response=\"{0}\"", "password=['{0}']",
    "password=b'{0}'", "passwords={{'a': ['{0}', {{'b': '{0}'}}]}}", "password=Secret('{0}')", "auth=('me', '{0}')",
    "curl -u 'me:{0}'", "curl -u me:{0}", "-u me:{0}", "password => {0}", "password := '{0}'",
    "<password>{0}</password>", "<name>my.password</name><value>{0}</value>",
    "password: |\n    {0}\n    {0}", "passwords:\n    - {0}",
    "password == '{0}'",
]  # fmt: skip
"""How people and programs write a secret; the second form is Base64 of a name, a colon and the secret."""


@given(
    st.sampled_from(_WAYS),
    st.text(alphabet=string.ascii_letters + string.digits + "._~+/-", min_size=1, max_size=30).map("Q{}Z7".format),
    st.sampled_from(["", "could not connect: ", "x=1, ", "{'a': 1}\n", "$ ", "- "]),
    st.sampled_from(["", "\nnext: 1", "\nas was said"]),
    st.sampled_from([str, repr, lambda text: repr(repr(text)), json.dumps]),
)
def test_a_secret_is_masked_however_it_is_written(way, secret, before, after, shown_as):
    basic = base64.b64encode(f"me:{secret}".encode()).decode()
    text = before + way.format(secret, basic) + after
    if "\n " in way:  # blocks are lines of a file
        shown_as = str
    shown = masked(shown_as(text))
    assert secret not in shown
    assert basic not in shown
    assert masked(shown) == shown
    if shown_as is str:
        assert shown.startswith(before)
        assert shown.endswith(after)


_WORDS = """a the basic Basic bearer Bearer token cookie auth authorization types mode is of for expired password key
user at line 12 3.5 x=1 (a, b) [1] {'n': 'u'} f(x) not found: failed, it's "so" http://h:80/x"""


@given(st.lists(st.sampled_from(_WORDS.split()), max_size=12).map(" ".join))
def test_a_sentence_without_a_secret_stays_as_it_is(text):
    assert masked(text) == text


@given(st.text(alphabet="pasword-:=,'\"\\ \n{([@/token", max_size=40))
def test_what_is_masked_once_is_masked(text):
    assert masked(masked(text)) == masked(text)


@given(st.sampled_from(TEXTS))
def test_no_error_shows_a_password(text):
    error = StorageError(f"could not open {text!r}", hint=f"not {text}", path=text, paths=[text], options={"x": text})
    again = pickle.loads(pickle.dumps(error))
    for shown in (str(error), repr(error), error.message, repr(error.context), error.hint, str(again)):
        assert "p4ss" not in shown


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("s3://KEY:p4ss@bucket/dir", "a password"),
        ("s3://KEY:p4ss/more@bucket/dir", "a password"),
        ("sftp://u:p4ss@host/dir", "a password"),
        ("s3://bucket/dir?region=x&secret_key=p4ss", "option 'secret_key'"),
    ],
)
@pytest.mark.parametrize("use", [absolute_uri, filesystem_for])
def test_a_place_with_credentials_is_refused(use, uri, found):
    with pytest.raises(ConfigurationError, match=found) as caught:
        use(uri)
    assert "p4ss" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", ["hdfs://u@host:9000/d", "s3://bucket/d?region=x", "http://h:80/a@b", "/a:b@c", "gs://b/d"]
)
def test_other_places_are_not(uri):
    assert secret_in(uri) is None
    assert absolute_uri(uri) == uri


@pytest.mark.parametrize(
    "text",
    [
        'password="' + "\\" * 300_000,
        "password='" + "\\x" * 200_000,
        "a." * 200_000 + "=",
        "-password" * 50_000,
        "password " + " " * 300_000,
        "://a:x" * 60_000,
        "://a:x@" * 50_000,
        "://a:x@'" * 50_000,
        "password='" * 40_000,
        "'password': " * 40_000,
        "authorization: " * 30_000,
        "token: " * 60_000,
        "--password " * 40_000,
        "--" + "a-" * 200_000,
        "('password', " * 40_000,
        "password" + " " * 200_000 + ":" + " " * 200_000,
        "authorization: " + "a" * 300_000,
        "password=[" * 40_000,
        "password=a(" * 40_000,
        "password=a(\n)" * 40_000,
        "password=[\n" * 40_000,
        "password=''" * 60_000,
        "token=(" + "\\" * 300_000,
        "password=" + "'" * 300_001,
        "cookie: a=b;" * 40_000,
        "cookie: " + "a=b; " * 60_000,
        "authorization: " + "a=b, " * 60_000,
        "Bearer " * 60_000,
        "Basic " + "QUJD" * 100_000,
        "<password " * 40_000,
        "<name> " * 60_000,
        "<name>" + " " * 300_000,
        "-u " * 100_000,
        "password:\n" * 40_000,
        "password:\\n" * 40_000,
        "password: |\\n " * 40_000,
        "".join(" " * n + "password:\n" for n in range(600)),
        "password:" + "\n" * 300_000,
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.sampled(4)
def test_any_text_is_masked_in_time(text):
    """Errors quote what records hold. These took minutes, or for ever."""
    assert isinstance(masked(text), str)


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("http://me:secret@host/a@b?token=x&shop=1&flag", "http://me:***@host/a@b?token=***&shop=1&flag"),
        ("mongodb://me:p@one,two/shop", "mongodb://me:***@one,two/shop"),
        ("http://host:80/password=1/x", "http://host:80/password=1/x"),
        ("s3://bucket/token=1", "s3://bucket/token=1"),
        ("/data/token=1?token=2", "/data/token=1?token=2"),
        ("password=1", "password=1"),
    ],
)
def test_values_keep_all_but_the_secrets_of_urls(value, left):
    assert without_secrets(value) == left


@pytest.mark.parametrize(
    "name", ["password", "aws.credentials.basic.secretkey", "headers.Authorization", "headers.X-Api-Key"]
)
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize("name", ["headers.X-Tenant", "headers.Accept", "key.fields", "primary-key", "topic"])
def test_names_of_no_secrets(name):
    assert not is_secret(name)
