"""The options of the Python tools. A refusal is one sentence on standard error, with exit status 2."""
import argparse
import math
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
EMPTY = "as from an unset variable; give one, or leave it out"


class Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the text above the options, and shows the default of each."""


class Parser(argparse.ArgumentParser):
    """Refuses empty values, as the programs do."""

    def error(self, message):
        text = message.removeprefix("argument ").replace(": has an empty value", " has an empty value")
        print(f"{self.prog}: {text}; see --help", file=sys.stderr)
        sys.exit(2)

    def parse_args(self, args=None, namespace=None):
        words = sys.argv[1:] if args is None else args
        for before, word in zip(["", *words], words):
            option = word.startswith("--") and " " not in word
            name = word[:-1] if word else before
            if not word or (option and word.find("=") == len(word) - 1):
                self.error(f"{name if name.startswith('--') else 'a word of the command line'} has an empty value, {EMPTY}")
        return super().parse_args(self.with_values(words), namespace)

    def with_values(self, words):
        """The words with each --train VALUE as --train=VALUE: argparse takes one option of another program for an option of this one."""
        joined = []
        for word in words:
            if joined and joined[-1] == "--train" and word.startswith("-") and word not in self._option_string_actions:
                joined[-1] += "=" + word
            else:
                joined.append(word)
        return joined


def usual_build():
    """Of a checkout, or of an installed tree, where this file is in share/cifar_mpi/tools."""
    build = os.path.join(ROOT, "build")
    return build if os.path.isdir(build) or not ROOT.endswith("share/cifar_mpi") else os.path.join(ROOT, "..", "..", "bin")


def whole(low):
    def parse(text):
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {low}, not '{text}'")
        return int(text)

    return parse


def number(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"must be a number {'below 1000000' if value > 0 else 'above 0'}, not '{text}'")
    return value


def list_of(parse):
    def parse_all(text):
        words = text.split(",")
        if "" in words:
            raise argparse.ArgumentTypeError(f"has an empty value in '{text}', {EMPTY}")
        return [parse(word) for word in words]

    return parse_all
