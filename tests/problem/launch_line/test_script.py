"""A shell script is followed without being run; what it does not state is named."""

import re
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.problem.bounds import MOST_EXPANDED
from oppa.problem.launch_line.script import read_script
from oppa.problem.launch_line.script_launch import ScriptLaunch
from oppa.problem.launch_line.shell_arithmetic import compute
from oppa.problem.launch_line.words import texts, typed


def launch(text: str, *arguments: str, gpus: int | None = None, **environment: str) -> ScriptLaunch:
    return read_script(Path("run.sh"), typed(["run.sh", *arguments]), environment=environment, text=text, gpus=gpus)


def words(text: str, *arguments: str, **environment: str) -> list[str]:
    return texts(launch(text, *arguments, **environment).words)[2:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TP=2\ntorchrun t.py --tp $TP", ["--tp", "2"]),
        ("torchrun t.py --tp ${TP:-4}", ["--tp", "4"]),
        ("A=1; B=${A}x\ntorchrun t.py $B", ["1x"]),
        ("ARGS=(--a 1 # a comment\n  --b 'x y')\ntorchrun t.py \"${ARGS[@]}\"", ["--a", "1", "--b", "x y"]),
        ('ARGS=("--a 1")\nARGS+=(--b)\ntorchrun t.py ${ARGS[@]}', ["--a", "1", "--b"]),
        ('ARGS="--a 1 \\\n --b 2"\ntorchrun t.py $ARGS', ["--a", "1", "--b", "2"]),
        ('A="x y"\ntorchrun t.py "$A" $A', ["x y", "x", "y"]),
        ("torchrun t.py \\\n  --a 1 2>&1 | tee log", ["--a", "1"]),
        ("N=8\ntorchrun t.py $((N * 2 + 1)) $((N > 4 ? 1 : 0))", ["17", "1"]),
        (': "${A:=3}"\ntorchrun t.py $A', ["3"]),
        ('if [ "$1" = big ]; then L=80; elif [[ $1 == small ]]; then L=2; else L=1; fi\ntorchrun t.py $L', ["2"]),
        ('case "$1" in\n big) L=80;;\n small|tiny) L=2;;\n *) L=1;;\nesac\ntorchrun t.py $L', ["2"]),
        ("[ 1 -eq 1 ] && A=yes\n[ 1 -eq 2 ] && A=no\ntorchrun t.py $A", ["yes"]),
        ("[[ -f /no/such ]] || { echo missing; exit 1; }\ntorchrun t.py a", ["a"]),
        ('CMD="torchrun t.py --a 1"\necho $CMD\neval $CMD', ["--a", "1"]),
        ("cat > f << EOF\ntorchrun other.py\nEOF\ntorchrun t.py a", ["a"]),
        ('torchrun t.py "${2:-none}" ${PRE#pre}', ["none"]),
        ("F=/a/b.json\ntorchrun t.py ${F##*/}", ["b.json"]),
        ("f() { torchrun other.py; }\ntorchrun t.py a", ["a"]),
        ("if [ $1 = big ]; then O='--x 1'; fi\ntorchrun t.py $O b", ["b"]),
        ("if [ $1 = big ]; then A=(--x 1); fi\ntorchrun t.py ${A[@]} b", ["b"]),
    ],
)
def test_a_script_is_followed(text, expected) -> None:
    assert words(text, "small", PRE="pre")[: len(expected)] == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ("$(nvidia-smi -L | wc -l)", "8"),
        ("$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)", "8"),
        ("$(python -c 'import torch; print(torch.cuda.device_count())')", "4"),
        ('`python3 -c "import torch;print(torch.cuda.device_count())"`', "4"),
    ],
)
def test_a_script_that_counts_the_gpus_gets_those_of_a_host(count, expected) -> None:
    text = f"N={count}\ntorchrun t.py $((N * 2))"
    visible = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    words = launch(text, gpus=8, **visible).words
    assert words[-1].text == str(2 * int(expected))
    assert launch(text, **visible).words[-1].missing and launch(f"N={count}x\ntorchrun t.py $N", gpus=8).words[-1].text.endswith("x")


@pytest.mark.parametrize("date", ["$(date +%Y-%m-%d_%H%M)", '`date "+%Y-%m-%d_%H%M"`', "$(date -u '+%Y-%m-%d_%H%M')"])
def test_a_date_in_a_name_is_the_one_of_the_first_reading(date) -> None:
    text = f"torchrun t.py --out run-{date} --again run-{date}"
    out, again = words(text)[1::2]
    assert re.fullmatch(r"run-\d{4}-\d\d-\d\d_\d{4}", out) and out == again == words(text)[1]


def test_a_number_of_gpus_that_an_unknown_value_restricts_is_not_guessed() -> None:
    text = "export CUDA_VISIBLE_DEVICES=$(pick)\ntorchrun t.py $(python -c 'import torch; print(torch.cuda.device_count())')"
    assert launch(text, gpus=8).words[-1].missing


def test_loops_without_an_end_are_left_and_what_they_may_set_is_unknown() -> None:
    text = "L=1\nwhile true; do until false; do L=$((L + 1)); done; done\ntorchrun t.py $L"
    assert launch(text).words[-1].missing == ("$L",)


def test_every_word_knows_where_it_was_written() -> None:
    found = launch('TP=2\nARGS="--a $TP\n --b 3"\ntorchrun t.py $ARGS "$@"', "--c")
    assert [(word.text, word.origin) for word in found.words[2:]] == [
        ("--a", "run.sh:2"),
        ("2", "run.sh:1"),
        ("--b", "run.sh:3"),
        ("3", "run.sh:3"),
        ("--c", "line"),
    ]


def test_exports_and_variables_in_front_are_the_environment() -> None:
    found = launch("export A=1\nB=2\nexport B\nC=3 torchrun t.py")
    assert {name: word.text for name, word in found.environment.items()} == {"A": "1", "B": "2", "C": "3"}


def test_what_is_not_stated_is_named_and_never_guessed() -> None:
    found = launch("torchrun t.py --host $(hostname) --rank $SLURM_NODEID --n $((X + 1))")
    assert [word.missing for word in found.words if word.missing] == [("$(hostname)",), ("$SLURM_NODEID",), ("$((X + 1))",)]


def test_a_variable_that_a_loop_may_set_is_not_known() -> None:
    found = launch("A=1\nfor x in 1 2; do A=$x; done\ntorchrun t.py $A")
    assert found.words[-1].missing == ("$A",)


def test_the_folder_that_a_script_changes_to_is_kept() -> None:
    assert launch("cd /data && torchrun t.py").folder == Path("/data")


def test_other_scripts_that_it_reads_set_its_variables(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.sh").write_text("TP=4\n")
    text = "source env.sh\ntorchrun t.py $TP"
    found = read_script(tmp_path / "run.sh", typed(["run.sh"]), environment={}, text=text)
    assert (found.words[-1].text, found.words[-1].origin) == ("4", "env.sh:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hi", "starts no program"),
        ("torchrun a.py\ntorchrun b.py", "several things"),
        ("python prepare.py\ntorchrun b.py", "several things"),
        ("for lr in 1 2; do torchrun t.py; done", "inside a `for` loop"),
        ('if [ "$RANDOM" = 1 ]; then torchrun t.py; fi', "condition is unknown"),
        ("torchrun 'a", "not closed"),
        ("A=${B\ntorchrun t.py", "not closed"),
        ("if true; then\ntorchrun t.py", "no `fi`"),
        ("torchrun <(cat a)", "process substitution"),
        ('if [ -z "$LOAD" ]; then\n  exit 1\nfi\npython train.py', "ends with `exit 1` at line 2, before it starts a program"),
    ],
)
def test_a_script_that_is_not_one_launch_is_refused(text, message) -> None:
    with pytest.raises(InputError, match=message):
        launch(text)


def test_the_size_of_what_variables_expand_to_is_bounded() -> None:
    arrays = "A=(xxxxxxxxxxxxxxxx)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40
    with pytest.raises(InputError, match=str(MOST_EXPANDED)):
        launch(f"{arrays}torchrun t.py ${{A[@]}}")
    doubled = "".join(f"A{n + 1}=$A{n}$A{n}\n" for n in range(40))
    with pytest.raises(InputError, match=str(MOST_EXPANDED)):
        launch(f"A0=xxxxxxxxxxxxxxxx\n{doubled}torchrun t.py $A40")


def test_the_depth_of_a_script_is_bounded() -> None:
    with pytest.raises(InputError, match="deep"):
        launch("if true; then\n" * 100 + "torchrun t.py")


@pytest.mark.parametrize(
    ("text", "value"),
    [("8*1", 8), ("(2+3)*4", 20), ("7/2", 3), ("7%4", 3), ("-3+1", -2), ("2>1", 1), ("1==2 || 3==3", 1), ("1 ? 2 : 3", 2), ("!0", 1)],
)
def test_arithmetic_is_that_of_the_shell(text, value) -> None:
    assert compute(text) == value


@pytest.mark.parametrize("text", ["", "1/0", "2**9", "a+1", "(1", "1 2", "9" * 30, "99999999999999999*99999999999999999", "1;2"])
def test_other_arithmetic_has_no_value(text) -> None:
    assert compute(text) is None
