"""Templates give what Go's text/template with Sprig gives, and whatever a tenant writes ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgpu.discovery.rules.model import RuleError
from kgpu.discovery.rules.templates.functions import FUNCTIONS
from kgpu.discovery.rules.templates.parser import MAX_TEMPLATE, parse
from kgpu.discovery.rules.templates.run import BUDGET, _Run, expand, expand_lines
from tests.budget import tries

DATA = {
    "pci": {"device": [{"class": "0300", "vendor": "10de"}, {"class": "1200", "vendor": "1002"}]},
    "k": {"v": [{"Name": "a", "Value": "1"}, {"Name": "b"}]},
}

GIVES = [
    # Go's own
    ("a{{/* a comment */}}b {{- /* c */ -}} c", "abc"), ("x {{- 1 -}} y", "x1y"), ("{{ `raw\\n` }}", "raw\\n"),
    ('{{ "a\\tb\\u00e9\\x41" }}', "a\tb\u00e9A"), ("{{.k.v}}", "[map[Name:a Value:1] map[Name:b]]"),
    ("{{len .pci.device}}", "2"), ("{{(index .pci.device 1).vendor}}", "1002"), ("{{index .pci.device 0 `vendor`}}", "10de"),
    ("{{range $i, $d := .pci.device}}{{$i}}{{$d.class}} {{end}}", "00300 11200 "),
    ("{{range $d := .pci.device}}{{$d.class}}{{$.pci.device | len}}{{end}}", "0300212002"),
    ("{{range .pci.device}}{{if eq .vendor `10de` `8086`}}n{{else if eq .vendor `1002`}}a{{else}}o{{end}}{{end}}", "na"),
    ("{{range list}}x{{else}}none{{end}}", "none"), ("{{range 3}}{{.}}{{end}}", "012"),
    ("{{range until 5}}{{if eq . 1}}{{continue}}{{end}}{{if eq . 3}}{{break}}{{end}}{{.}}{{end}}", "02"),
    ("{{with index .pci.device 0}}{{.class}}{{else}}no{{end}}", "0300"), ("{{with ``}}y{{else}}n{{end}}", "n"),
    ("{{$x := 1}}{{range .pci.device}}{{$x = add $x 1}}{{end}}{{$x}}", "3"),
    ("{{and 1 0 (fail `no`)}}{{or 0 `y` (fail `no`)}}{{not 0}}", "0ytrue"),
    ("{{lt 1 2}}{{le 2 2}}{{gt `b` `a`}}{{ge 1 2}}{{ne `a` `b`}}", "truetruetruefalsetrue"),
    ("{{print 1 2 `a` 3}}|{{println `a` 1}}", "1 2a3|a 1\n"), ("{{1.5}} {{2.0}} {{0x10}} {{010}} {{-3}}", "1.5 2 16 8 -3"),
    ("{{printf `%05d|%-4s|%4v|%q|%x|%t|%%|%.2f|%+d` 42 `a` 1 `b` 255 true 1.5 7}}", '00042|a   |   1|"b"|ff|true|%|1.50|+7'),
    ("{{slice `abcd` 1 3}}{{slice `abcd` 2}}", "bccd"), ("{{nil}}", "<no value>"), ("{{index (dict) `x`}}", ""),
    # Sprig's
    ("{{upper `a`}}{{lower `B`}}{{trim ` c `}}{{nospace ` d e`}}", "Abcde"),
    ("{{trimPrefix `v` `v1`}}{{trimSuffix `b` `ab`}}{{trimAll `-` `-x-`}}", "1ax"),
    ("{{`10de` | hasPrefix `10`}}{{hasSuffix `x` `a`}}{{contains `0d` `10de`}}", "truefalsetrue"),
    ("{{replace ` ` `-` `A B C`}}{{repeat 2 `ab`}}{{trunc 3 `abcdef`}}{{trunc -2 `abcdef`}}", "A-B-Cabababcef"),
    ("{{substr 1 3 `abcd`}}{{substr 2 -1 `abcd`}}{{substr -1 2 `abcd`}}", "bccdab"),
    ("{{quote `a` 1}} {{squote `b`}} {{cat `a` 1}} {{toString 5}}", "\"a\" \"1\" 'b' a 1 5"),
    ("{{(split `-` `a-b`)._1}}{{(splitn `.` 2 `a.b.c`)._1}}{{join `,` (splitList `-` `x-y`)}}{{join `,` `z`}}", "bb.cx,yz"),
    ("{{add 1 `2` 3}} {{sub 5 3}} {{mul 2 3}} {{div 7 -2}} {{mod -7 3}} {{max 1 3 2}} {{min 3 1}} {{add1 1}}", "6 2 6 -3 -1 3 1 2"),
    ("{{int `12`}}{{int `x`}}{{atoi `7`}}{{int64 2.9}}", "12072"), ("{{until 3}}{{untilStep 0 6 2}}", "[0 1 2][0 2 4]"),
    ("{{default `d` ``}}{{`v` | default `d`}}{{empty 0}}{{coalesce `` 0 `z`}}{{ternary `a` `b` false}}", "dvtruezb"),
    ("{{first (list 1 2)}}{{last (list 1 2)}}{{rest (list 1 2)}}{{initial (list 1 2)}}{{reverse (list 1 2)}}", "12[2][1][2 1]"),
    ("{{append (list 1) 2}}{{prepend (list 1) 0}}{{concat (list 1) (list 2)}}{{has 1 (list 1)}}{{without (list 1 2) 2}}",
     "[1 2][0 1][1 2]true[1]"),
    ("{{uniq (list 1 1 2)}}{{compact (list `` `a`)}}{{sortAlpha (list `b` `a`)}}", "[1 2][a][a b]"),
    ("{{$d := dict `b` 2 `a` 1}}{{get $d `a`}}{{hasKey $d `z`}}{{keys $d}}{{values $d}}", "1false[a b][1 2]"),
    ("{{regexMatch `^10` `10de`}} {{semverCompare `>=1.2` `1.10.0-x`}} {{semverCompare `1.0` `v1`}}", "true true true"),
    ("{{b64enc `a`}} {{sha256sum `` | trunc 6}}", "YQ== e3b0c4"),
]  # fmt: skip

REFUSED = [
    # where the rule is read
    '{{env "PATH"}}', '{{expandenv "$PATH"}}', '{{getHostByName "localhost"}}', "{{now}}", "{{randAlpha 5}}", "{{html 1}}",
    '{{define "x"}}{{end}}', '{{template "x"}}', '{{block "x" .}}{{end}}', "{{", "{{end}}", "{{if 1}}", "{{else}}", "{{}}",
    "{{range .a}}{{else}}{{else}}{{end}}", "{{$x}}", "{{$x = 1}}", "{{if 1}}{{$x := 1}}{{end}}{{$x}}", "{{1 | 2}}", "{{1 2}}",
    "{{(1}}", "{{'a'}}", '{{"\\q"}}', "{{break}}", "{{upper(`a`)}}", "{{99999999999999999999}}", "{{.a.}}", "{{|}}",
    "{{if 1}}" * 60 + "{{end}}" * 60, "{{" + "(" * 60 + "1" + ")" * 60 + "}}", "x" * (MAX_TEMPLATE + 1), "{{if 1}}" * 8000,
    "".join(f"{{{{$a{n} := 1}}}}" for n in range(101)),
    # where it is carried out
    "{{.nope}}", "{{range .k.v}}{{.Value}}{{end}}", "{{.pci.device.vendor}}", "{{upper}}", "{{upper 1}}", "{{eq 1 `1`}}",
    "{{eq .k.v .k.v}}", "{{lt true false}}", "{{index .pci.device 9}}", "{{slice `abc` 3 9}}", "{{len 1}}", "{{range `abc`}}{{end}}",
    "{{printf `%d` `a`}}", "{{printf `%z` 1}}", "{{printf `%d`}}", "{{printf `a` 1}}", "{{div 1 0}}", "{{mod 1 0}}", "{{fail `so`}}",
    "{{regexMatch `(` `a`}}", "{{semverCompare `^1` `1`}}", "{{first 1}}", "{{index 1 2}}", "{{mul 9000000000000000000 2 | add 1}}",
    "{{range list}}{{else}}{{end}}{{range $i, $x := list}}{{else}}{{$x}}{{end}}",
]  # fmt: skip

HOSTILE = [
    "{{range until 9999}}{{range until 9999}}{{end}}{{end}}",
    "{{$a := list `x`}}{{range until 9000}}{{$a = list $a $a}}{{end}}{{print $a}}",
    "{{$a := `x`}}{{range until 60}}{{$a = print $a $a}}{{end}}",
    "{{repeat 99999 `x`}}",
    "{{$a := repeat 60000 `x`}}{{replace `` $a $a}}",
    "{{$a := repeat 30000 `x`}}{{join $a (until 9999)}}",
    "{{$a := repeat 60000 `x`}}{{print" + " $a" * 20_000 + "}}",
    "{{range until 9000}}{{regexMatch `(?:a?){400}a{400}` (repeat 4000 `a`)}}{{end}}",
    "{{range 9999999999}}{{end}}",
    "{{until 99999999}}",
    "{{range until 9000}}" + "x" * 100 + "{{end}}",
    "{{$a := until 9000}}{{range until 9000}}{{without $a 1 2 3}}{{end}}",
]


@pytest.mark.parametrize(("template", "output"), GIVES)
def test_what_a_template_gives(template, output):
    assert expand(template, DATA) == output


@pytest.mark.parametrize("template", [*REFUSED, *HOSTILE], ids=lambda template: template[:40])
def test_what_can_not_be_carried_out_is_refused_with_its_reason(template):
    with pytest.raises(RuleError) as refused:
        expand(template, DATA)
    assert refused.value.expected
    assert refused.value.remedy
    assert len(refused.value.what) < 400


@pytest.mark.parametrize("template", REFUSED[:6])
def test_an_unknown_function_is_named_where_the_rule_is_read(template):
    name = template.strip("{}").split()[0]
    with pytest.raises(RuleError, match=f'the function "{name}" is not known here'):
        parse(template)


def test_errors_say_the_line():
    with pytest.raises(RuleError, match="line 3 of the template: there is no field"):
        expand("a\nb\n{{.nope}}", DATA)


@pytest.mark.parametrize(
    ("template", "lines"),
    [("", {}), ("\n \n", {}), ("a=b", {"a": "b"}), ("a=", {"a": ""}), (" a=b \n\tc=d=e", {"a": "b", "c": "d=e"}),
     ("a=1\na=2", {"a": "2"})],
)  # fmt: skip
def test_lines(template, lines):
    assert expand_lines(template, {}) == lines


def test_a_line_without_a_sign_is_an_error():
    with pytest.raises(RuleError, match='the line "b"'):
        expand_lines("a=1\nb", {})


def test_no_run_takes_more_than_its_steps():
    run = _Run(DATA)
    with pytest.raises(RuleError, match=f"more than {BUDGET} steps"):
        run.block(parse(HOSTILE[0]), DATA)


def test_the_reference_names_every_function():
    page = (Path(__file__).parents[4] / "docs/reference/node-rules.md").read_text()
    assert [name for name in FUNCTIONS if f"`{name}`" not in page] == []


WORDS = st.sampled_from(
    [*FUNCTIONS, ".", "$", "$x", ".k.v", ".pci.device", "1", "-1", "0", "`a`", "``", '"b"', "true", "nil", "1.5", "|", "(", ")",
     "(list 1 2)", "(dict `a` 1)", "if", "range", "with", "else", "end", "$x :=", "until 3", "9223372036854775807", "`%d%5s%x`"]
)  # fmt: skip


def came_of(template, data):
    """The output, or the error's text."""
    try:
        return expand(template, data)
    except RuleError as error:
        return error.one_line()


@tries(1500)
@given(st.lists(WORDS | st.just("}}{{"), max_size=8).map(lambda words: "{{" + " ".join(words) + "}}"))
@example("{{splitn `` -1 `a`}}")
@example('{{b64enc "\\ud800"}}')
@example("{{last (list)}}{{first (list)}}{{rest (list)}}")
def test_anything_is_carried_out_or_refused(template):
    assert isinstance(came_of(template, DATA), str)


@tries(500)
@given(st.text(alphabet=st.sampled_from("{}-$.|()=:\"`'\\ \nabif019/*,"), max_size=40))
def test_any_text_is_read_or_refused(template):
    assert isinstance(came_of(template, {}), str)
