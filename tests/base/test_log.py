"""One record is one line, whatever the message holds; credentials never come through; JSON is JSON."""

from __future__ import annotations

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.advice import Advice, Severity
from kgpu.base.log import JsonFormatter, TextFormatter, blank_credentials, configure, log_advice, one_line

ADVICE = Advice(
    subject="GPU-1",
    what="marked unhealthy",
    why="the driver reported a critical error",
    evidence=("Xid 79", "password=hunter22"),
    severity=Severity.ERROR,
    remedy="reset the GPU",
    reason="GpuUnhealthy",
)


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def written(form: str, level: str = "info"):
    stream = io.StringIO()
    configure(level=level, form=form, stream=stream)
    return stream


def test_text_lines_have_severity_component_and_message(root_logger):
    stream = written("text")
    logging.getLogger("kgpu.agent").warning("waiting for %s", "the kubelet")
    logging.getLogger("kgpu.agent").debug("not shown")
    line = stream.getvalue()
    assert line.startswith("W")
    assert line.endswith(" agent] waiting for the kubelet\n")
    assert line.count("\n") == 1


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@given(message=st.text())
def test_a_message_can_not_forge_a_second_line(formatter, message):
    record = logging.LogRecord("kgpu", logging.ERROR, "file", 1, "%s", (message,), None)
    assert len(formatter.format(record).splitlines()) == 1


def test_a_template_of_several_lines_is_the_programs_own(root_logger):
    stream = written("text")
    logging.getLogger("kgpu").info("the document:\n%s", '{\n "key": "a\x1b[31m"\n}')
    assert stream.getvalue().split("] ", 1)[1] == 'the document:\n{\n "key": "a\\x1b[31m"\n}\n'


@given(st.text())
def test_escaping_leaves_printable_text_alone_and_no_line_end(text):
    assert len(one_line(text).splitlines()) <= 1
    if text.isprintable():
        assert one_line(text) == text


def test_json_carries_a_advice_field_by_field(root_logger):
    stream = written("json")
    log_advice(logging.getLogger("kgpu.agent"), ADVICE)
    record = json.loads(stream.getvalue())
    assert record["level"] == "error"
    assert record["subject"] == "GPU-1"
    assert record["reason"] == "GpuUnhealthy"
    assert record["evidence"] == ["Xid 79", "password=***"]
    assert record["remedy"] == "reset the GPU"
    assert "hunter22" not in stream.getvalue()


def test_text_tells_the_whole_advice(root_logger):
    stream = written("text")
    log_advice(logging.getLogger("kgpu.agent"), ADVICE)
    line = stream.getvalue()
    for part in ("GPU-1", "marked unhealthy", "because the driver", "Xid 79", "to do: reset the GPU"):
        assert part in line


def test_a_traceback_is_in_the_json_record(root_logger):
    stream = written("json")
    try:
        raise ValueError("token=abcdefgh")
    except ValueError:
        logging.getLogger("kgpu").exception("broken")
    record = json.loads(stream.getvalue())
    assert "ValueError" in record["traceback"]
    assert "abcdefgh" not in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abc.def-123", "abc.def-123"),
        ("token: s3cr3tvalue", "s3cr3tvalue"),
        ('{"password": "hunter22"}', "hunter22"),
        ("got eyJhbGciOiJSUzI1.eyJpc3MiOiJrdWJl.c2lnbmF0dXJl here", "eyJpc3MiOiJrdWJl"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    ],
)
def test_credentials_are_blanked(text, secret):
    assert secret not in blank_credentials(text)
    assert "***" in blank_credentials(text)


@pytest.mark.parametrize("text", ["tokens: 3", "secretary", "the token is missing", "basic checks passed"])
def test_plain_words_are_left_alone(text):
    assert blank_credentials(text) == text


def test_a_line_of_beginnings_of_tokens_takes_no_time_that_grows_with_its_square():
    text = "eyJ" * 400_000
    assert blank_credentials(text) == text
