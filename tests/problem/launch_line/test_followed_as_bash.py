"""A script starts what bash would start, or the reading names what is unknown."""

import shlex
import subprocess
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.problem.launch_line.script import read_script
from oppa.problem.launch_line.words import texts, typed

LAYERS = 'python train.py --layers "$L"'
ARGUMENTS = 'python train.py "$@"'
SCRIPTS = [
    "L=12; big() { L=24; }; big",
    "L=12; big() { L=24; }\nlarge() { big; }\nlarge",
    "L=12; function big { L=24; }; big",
    "L=12; big() ( L=24 ); big",
    "L=12; big() { L=24; }",
    'L=12; eval "L=24"',
    "L=12; eval L=24",
    "L=12; while [ $L -lt 24 ]; do L=24; done",
    "L=12; until [ 1 = 2 ]; do L=24; break; done",
    "N=3; L=$(expr $N + 4)",
    "L=$(expr length abc)",
    "L=$(expr 3 - x)",
    "if [ a = b ]; then L=24; fi",
    "if [ a = b ]; then L=24; fi; L=$L$L",
    "if [ a = b ]; then L=24; elif grep -q x y; then L=48; fi",
    "f() { L=24; }; L=$L",
    "set -- -a 3 --layers 24; while [ $# -gt 0 ]; do case $1 in --layers) L=$2; shift;; -a) shift;; esac; shift; done",
    'set -- -l 24; while [[ "$1" != "" ]]; do case $1 in -l) shift; L=$1;; -h) exit 0;; *) exit 1;; esac; shift; done',
    "set -- x; while [ $# -gt 0 ]; do case $1 in -l) L=2;; *) L=7;; esac; shift; done; L=$L$#",
    "L=1; while [ $L -lt 24 ]; do L=$((L * 2)); done",
    "L=1; until [ $L -ge 24 ]; do L=$((L + 5)); done",
    "L=1; while [ $L -lt 24 ]; do L=$((L * 2)); break; done",
    "L=1; while [ $L -lt 24 ]; do L=$((L * 2)); if [ $L -gt 3 ]; then continue; fi; L=$((L + 100)); done",
    "L=1; while grep -q x y; do L=2; done",
    "L=1; while [ $L -lt 4 ]; do while [ $L -lt 3 ]; do L=$((L + 1)); done; L=$((L + 1)); done",
    "set -- -a 24; while getopts a: X; do L=$OPTARG; done",
    "L=1; while [ $L -lt 3 ]; do L=$((L + 1)); grep -q x y && L=9; done",
    "L=$(dirname $(dirname /a/b/c))",
    "L=$(dirname a)",
    "L=$(dirname /a/)",
    "L=$(dirname -- a/b)",
    "L=$(dirname a/b c/d)",
    "L=$(basename /a/b.yaml .yaml)",
    "L=$(basename a/b/)",
    "L=$(basename /)",
    "L=$L/a",
    "L=$L",
    "L=a:$M",
    "grep -q x y && L=b; L=a:$L",
    "L=12; eval 'echo L=24'",
    "L=12; eval $(echo L=24)",
    "L=12; CMD='L=24'; eval \"$CMD\"",
    'L=12; N=L; eval "$N=24"',
    'L=12; let "L=24"',
    "L=12; let L=24 H=3",
    "L=12; ((L=24))",
    "L=12; (( L += 12 ))",
    "L=12; ((L++))",
    "L=12; : $((L=2048))",
    "L=12; printf -v L 24",
    "L=12; (L=24)",
    "L=12; (L=24; echo $L)",
    "L=12; L=24 | true",
    "L=12; echo 24 | read L",
    "L=12; true && L=24 | cat",
    "L=12; L=24 & wait",
    "L=12; true && L=24 & wait",
    "L=12; source model.conf",
    "L=12; source e.conf",
    "L=12; source $MODEL_CONF",
    "L=12; export $(cat .env)",
    "L=12; export $(echo L=24)",
    "L=12; P=L=24; export $P",
    "L=12; cd proj; source e3.sh",
    "L=12; cd proj; source ./e3.sh; cd ..",
    ". ./e.sh 48",
    "L=12; . ./e.sh 48; L=$L$1",
    "L=12; . ./leaves.sh; L=24",
    "L=12; grep -q x y && L=24",
    "L=12; grep -q x y || L=24",
    "L=12; no-such-tool || L=24",
    "L=12; no-such-tool && L=24",
    "[ 1 = 2 ] && L=80 || L=2",
    "[ 1 = 1 ] && L=80 || L=2",
    "L=12; [[ 5 > 3 ]] && L=24",
    "L=12; [[ 2 > 3 ]] && L=24",
    "L=12; [[ 1 == 1 && 2 == 3 ]] && L=24",
    "declare -A S=([l]=24); L=${S[l]}",
    "S[0]=48; L=${S[0]}",
    "S=(1 2); S[0]=48; L=${S[0]}",
    "S=([1]=7 [0]=8); L=${S[0]}",
    "declare -i L=6*2",
    "declare -i L; L=6*2",
    "typeset -l L=ABC",
    "declare -n R=L; L=12; R=24",
    "L=12; for L in 24; do :; done",
    "L=12; while read L; do :; done < /dev/null",
    "L=12; for ((L=0; L<3; L++)); do :; done",
    "L=12; if grep -q x y; then :; else L=24; fi",
    "L=12; if let L=24; then :; fi",
    "L=12; for i in 1; do eval L=24; done",
    "L=12; for i in 1; do L+=4; done; L+=5",
    'for i in 1; do L=4; done; [ -z "$L" ] && L=9',
    "for i in 1; do : ${L:=24}; done; : ${L:=12}",
    "L=${OPTIND:-4}",
    "[[ abc =~ b ]]; L=${BASH_REMATCH[0]:-4}",
    "cd proj; L=$PWD",
    "cd proj; L=$(pwd)",
    "cd proj; L=1; [ -f here ] && L=2",
    "set -a; L=12; set +a",
    "L=12; ! L=24",
    "L=12; unset L; L=${L:-3}",
    "A='1,2'; IFS=,; L=$(echo $A)",
    "L=12; trap 'L=24' DEBUG; :",
    "L=12; command eval L=24",
    "L=12; builtin let L=24",
    "L=12; { L=24; } | cat",
    "L=12; { L=24; }",
    "L=12; case x in x) L=24;; esac | cat",
    "L=12; if true; then L=24; fi | cat",
]
WORDS = [
    'python train.py ~ ~/a x~ --a=~/b \'~\' "~/c" ~$L ~"/d"',
    'A=~/a; B=~; python train.py $A $B "${C:-~/c}"',
    "export A=~/a; python train.py $A",
    "cd ~/proj; python train.py $PWD",
    "python train.py d/{a,b}.json {1..3} {03..1} x{a,b}{c,d} {a} {} '{a,b}' {a..c}",
    'A=(d/{a,b}.json); python train.py "${A[@]}"',
    "python train.py *.conf 'e*' \"e*\" e?.sh [eh]* none-* proj/*.sh",
    "A='*.conf'; python train.py $A \"$A\"",
    'A=(*.conf e.s*); python train.py "${A[@]}"',
    'A=(a b c); python train.py ${A[-1]} ${A[-3]} "${A[*]}"',
    'A=(a \'b c\'); python train.py "${A[@]:-x}" "${B[@]:-x}" "${A[@]+"${A[@]}"}"',
    "python train.py $'a\\tb\\'c' $\"x y\"",
    "python train.py $((010+1)) $((08))",
    "A=1 B=$A python train.py",
]
ARGUMENT_SCRIPTS = [
    'set -- --bs 4 "$@"',
    "set --",
    "set -e; set -- a b",
    "set -eu a b",
    "set a b",
    "set -o errexit -- a",
    "shift",
    "shift 2",
    "shift 9",
    "N=2; shift $N",
    "shift $((1 + 1))",
    "shift $(echo 2)",
    "for i in 1; do shift; done",
    "if grep -q x y; then set -- z; fi",
    "f() { shift; }; f a",
    "f() { set -- z; }; f",
    "(shift)",
    "set -- a; shift; set -- $(echo b c)",
    "while [ $# -gt 2 ]; do shift; done",
    ". ./e.sh 48",
    ". ./e.sh",
    "eval 'set -- \"a b\" c'",
]
FILES = {
    "e.sh": "L=$1\n",
    "e.conf": "L=48\n",
    "e3.sh": "L=3\n",
    "leaves.sh": "L=7; return; L=8\n",
    ".env": "L=24\n",
    "here": "",
    "proj/e3.sh": "L=33\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started_by_bash(script: str, line: str, folder: Path, arguments: list[str]) -> list[str]:
    """Return the words that bash passes to the program."""
    prints = line.replace("python train.py", r"printf '%s\n'")
    shown = f"{script}\n{prints} > {shlex.quote(str(folder / 'words'))}\n"
    (folder / "shown.sh").write_text(shown)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    subprocess.run(["bash", "shown.sh", *arguments], cwd=folder, env=environment, capture_output=True, check=False)
    return (folder / "words").read_text().splitlines()


def read(text: str, arguments: list[str]) -> list[str] | None:
    """Return the words of the program as the reader has them; None if they are unknown."""
    try:
        environment = {"HOME": str(Path.cwd())}
        launch = read_script(Path("shown.sh"), typed(["shown.sh", *arguments]), environment=environment, text=text)
    except InputError:
        return None
    found = launch.words[2:]
    return None if any(word.missing for word in found) else texts(found)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_variable_is_that_of_bash_or_unknown(script, folder) -> None:
    found = read(f"{script}\n{LAYERS}\n", [])
    assert found is None or found == started_by_bash(script, LAYERS, folder, [])


@pytest.mark.parametrize("script", WORDS)
def test_words_are_those_of_bash_or_unknown(script, folder) -> None:
    *before, line = script.rpartition("python train.py")[0], f"python train.py{script.rpartition('python train.py')[2]}"
    found = read(f"{script}\n", [])
    assert found is None or (found or [""]) == started_by_bash("".join(before), line, folder, [])


@pytest.mark.parametrize("script", ARGUMENT_SCRIPTS)
def test_arguments_are_those_of_bash_or_unknown(script, folder) -> None:
    given = ["--one", "2", "--three"]
    found = read(f"{script}\n{ARGUMENTS}\n", given)
    assert found is None or (found or [""]) == started_by_bash(script, ARGUMENTS, folder, given)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('set -- --bs 4 "$@"', ["--bs", "4", "--one", "2"]),
        ("shift 2", []),
        ("eval 'set -- \"a b\" c'", ["a b", "c"]),
        ("set -eux -o pipefail; grep -q x y || true", ["--one", "2"]),
    ],
)
def test_changes_of_the_arguments_are_followed(script, expected, folder) -> None:
    assert read(f"{script}\n{ARGUMENTS}\n", ["--one", "2"]) == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("L=12; (L=24)", "12"),
        ("L=12; L=24 | true", "12"),
        ('eval "L=24"', "24"),
        ("cd proj; source e3.sh", "33"),
        (". ./e.sh 48", "48"),
        ("[ 1 = 2 ] && L=80 || L=2", "2"),
        ("f() { M=3; }; L=12; f", "12"),
        ("L=12; while [[ $# -gt 0 ]]; do case $1 in --l) L=$2; shift 2;; esac; done", "12"),
        ("L=12; until [ 1 = 1 ]; do L=24; done", "12"),
        ("N=3; L=$(expr $N \\* 4)", "12"),
        ("N=3; L=`expr \\( $N + 4 \\) / 2`", "3"),
        ("L=/opt/a:$L", "/opt/a:"),
        ('L="${L}:/opt/a"', ":/opt/a"),
        ('L="$L --more"', " --more"),
    ],
)
def test_what_can_be_followed_is_known(script, expected, folder) -> None:
    assert read(f"{script}\n{LAYERS}\n", []) == ["--layers", expected]


@pytest.mark.parametrize(
    "script",
    [
        "pushd proj",
        "pushd proj; popd",
        "pushd proj; pushd /; popd",
        "pushd proj; cd ..; popd",
        "cd proj; cd -",
        "cd proj; pushd ..; popd",
        "(cd proj)",
        "cd proj | true",
        "cd proj && cd ..",
        "cd",
        "cd $(echo proj)",
        "pushd +1",
        "popd",
        "if grep -q x y; then cd proj; fi",
        "f() { cd proj; }; f",
        "for i in 1; do cd proj; done",
        'eval "cd proj"',
    ],
)
def test_the_folder_is_that_of_bash_or_unknown(script, folder) -> None:
    (folder / "shown.sh").write_text(f"{script}\npwd > {shlex.quote(str(folder / 'words'))}\n")
    subprocess.run(["bash", "shown.sh"], cwd=folder, env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=False)
    try:
        launch = read_script(Path("shown.sh"), typed(["shown.sh"]), environment={}, text=f"{script}\npython train.py\n")
    except InputError as error:
        assert "is not known" in str(error)
        return
    assert (folder / (launch.folder or "")).resolve() == Path((folder / "words").read_text().strip())


def test_pushd_changes_the_folder_and_popd_restores_it(folder) -> None:
    def started_in(script: str) -> Path | None:
        return read_script(Path("s.sh"), typed(["s.sh"]), environment={}, text=f"{script}\npython train.py\n").folder

    assert (started_in("pushd proj"), started_in("cd /; pushd proj; popd")) == (Path("proj"), Path("/"))


def test_a_sourced_file_is_that_of_the_folder_of_the_line(folder) -> None:
    launch = read_script(Path("s.sh"), typed(["s.sh"]), environment={}, text=f"source e3.sh\n{LAYERS}", folder=Path("proj"))
    assert launch.words[-1].text == "33"


@pytest.mark.parametrize("script", ['CMD="python train.py --a 1"; eval "$CMD"', "CMD=\"python train.py --a 'x y'\"; eval $CMD"])
def test_the_program_of_eval_is_found(script, folder) -> None:
    assert read(script, []) in (["--a", "1"], ["--a", "x y"])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("CMD=\"python train.py --a 'x y' $(hostname)\"; eval $CMD", "inside an `eval` of something unknown"),
        ("f() { python train.py; }; f; python other.py", "inside the function `f`"),
        ('f() { "$@"; }; f python train.py; python other.py', "inside the function `f`"),
        ("if python train.py; then echo; fi", "condition is unknown"),
        ("f() { L=1; }; cd $X; python train.py", "folder of `python train.py` is not known, because of `cd"),
    ],
)
def test_a_launch_that_is_not_followed_is_refused(script, message, folder) -> None:
    with pytest.raises(InputError, match=message):
        read_script(Path("s.sh"), typed(["s.sh"]), environment={}, text=script)
