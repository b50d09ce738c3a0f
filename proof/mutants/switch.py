"""Builds many mutants at once, so that testing one costs no compilation.

    python3 switch.py TREE SAMPLE >SWITCHED

TREE is a copy of the sources, SAMPLE has a mutant of cargo-mutants per line, as JSON. In TREE, the
body of a mutated function gets a branch per mutant, with the mutated body; the variable
DLOCK_MUTANT selects one by its number when a test runs. Prints the numbers and names of these
mutants. Others stay as they are: those that do not build, and those whose function cannot have a
branch, such as a function that a constant calls.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

# What is not code: comments, strings, and characters. A lifetime has no closing quote.
NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""",
    re.DOTALL,
)

CONST = re.compile(r"\bconst (?=(async |unsafe )*fn )")


class Source:
    """A file, and the offsets of its lines."""

    def __init__(self, path):
        self.text = path.read_text()
        self.lines = [0]
        for line in self.text.split("\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)
        # The same text with spaces for all that is not code, so that braces can be counted.
        self.code = NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), self.text)

    def range(self, span):
        return tuple(self.lines[end["line"] - 1] + end["column"] - 1 for end in (span["start"], span["end"]))

    def function(self, function):
        """The offsets of a function: its signature, its block, and its end."""
        signature, end = self.range(function["span"])
        depth = 0
        for at in range(signature, end):
            if self.code[at] in "([":
                depth += 1
            elif self.code[at] in ")]":
                depth -= 1
            elif self.code[at] == "{" and depth == 0:
                return signature, at, end
        raise ValueError(f"{function['function_name']} has no block")


def select(mutant):
    """An expression that is true if the mutant is selected."""
    return (
        "{ static IS_SELECTED: ::std::sync::OnceLock<bool> = ::std::sync::OnceLock::new(); *IS_SELECTED.get_or_init(|| "
        f'::std::env::var("DLOCK_MUTANT").is_ok_and(|number| number == "{mutant["number"]}")) }}'
    )


def switch(source, mutants):
    """The text with a branch per mutant, and the lines that belong to each."""
    found = [source.function(mutant["function"]) for mutant in mutants]
    # A function inside of another is a part of that one's block.
    found = [min(outer for outer in found if outer[0] <= inner[0] and inner[2] <= outer[2]) for inner in found]
    text, done, owners = "", 0, []

    def add(more, owned):
        nonlocal text
        first = text.count("\n") + 1
        text += more
        owners.append((first, text.count("\n") + 1, owned))

    for signature, block, end in sorted(set(found)):
        inside = [mutant for mutant, function in zip(mutants, found) if function == (signature, block, end)]
        # A constant function cannot read a variable.
        text += source.text[done:signature] + CONST.sub("", source.text[signature:block], count=1) + "{ "
        for mutant in inside:
            first, last = source.range(mutant["span"])
            mutated = f"{source.text[block:first]}{mutant['replacement']} {source.text[last:end]}"
            add(f"if {select(mutant)} {mutated} else\n", [mutant])
        add(f"{source.text[block:end]} }}", inside)
        done = end
    return text + source.text[done:], owners


def errors(tree, packages):
    """The errors of the compiler: the file, the line, and the text of each."""
    selected = [part for package in packages for part in ("-p", package)]
    unit_tests = ["--lib", "--all-features", "--profile=test", *selected]
    # The tests of the workspace call functions in constants, with the attributes.
    for target in (unit_tests, ["--tests", "-p", "dlock-tests"]):
        check = ["cargo", "check", "-q", "--message-format=json", *target]
        ran = subprocess.run(check, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        messages = (json.loads(line).get("message") or {} for line in ran.stdout.splitlines())
        found = [message for message in messages if message.get("level") == "error"]
        for message in found:
            for span in message["spans"]:
                if span["is_primary"]:
                    yield span["file_name"], span["line_start"], message["rendered"]
        if found:
            return
        if ran.returncode != 0:
            sys.exit(f"cargo failed:\n{ran.stderr}")


def culprits(found, owners, mutants):
    """The mutants that may be the reason of an error: those of its line, or all that it names."""
    path, line, text = found
    spots = [spot for spot in owners.get(path, ()) if spot[0] <= line <= spot[1]]
    # E0015: a constant calls a function that is not constant any more.
    if spots and "E0015" not in text:
        return min(spots, key=lambda spot: len(spot[2]))[2]
    names = ((mutant, mutant["function"]["function_name"].split("::")[-1]) for mutant in mutants)
    return [mutant for mutant, name in names if re.search(rf"\b{re.escape(name)}\b", text)]


def main(tree, sample):
    mutants = [json.loads(line) for line in Path(sample).read_text().splitlines()]
    for number, mutant in enumerate(mutants, 1):
        mutant["number"] = number
    mutants = [mutant for mutant in mutants if mutant["function"] and mutant["package"] != "dlock-macros"]
    sources = {mutant["file"]: Source(tree / mutant["file"]) for mutant in mutants}
    while True:
        owners = {}
        for file, source in sources.items():
            text, owners[file] = switch(source, [mutant for mutant in mutants if mutant["file"] == file])
            if (tree / file).read_text() != text:
                (tree / file).write_text(text)
        failed = list(errors(tree, {mutant["package"] for mutant in mutants})) if mutants else []
        if not failed:
            break
        wrong = [mutant["number"] for found in failed for mutant in culprits(found, owners, mutants)]
        if not wrong:
            sys.exit("no mutant explains this error:\n" + failed[0][2])
        print(f"{len(set(wrong))} mutants cannot be selected when a test runs", file=sys.stderr)
        mutants = [mutant for mutant in mutants if mutant["number"] not in wrong]
    for mutant in mutants:
        print(mutant["number"], mutant["name"], sep="\t")


main(Path(sys.argv[1]), sys.argv[2])
