"""Count and time optimizer steps from the lines that a program prints.

Notation:
    unit      the thing that the program counts: an optimizer step, or one of `per_step` batches
    facts     the named groups of a line that matched: `step` or `done`, a time or rate, `loss`, `memory_gib`; `source`, a rank's prefix
    at_s      time at which the last unit was seen
    rest      units seen that make no whole step yet, and the seconds that they took

The rule for the numbers of one rank, or of ranks that share a stream without a prefix:

1. A higher number is new. The same number is the same unit, shown again. A lower number begins a new epoch.
2. Prefixes such as `[rank1]:` distinguish ranks. Each rank is counted by itself, and the rank that is furthest counts.
3. Without a prefix, a rank may print a number after another rank has printed the next one. Such a late line adds nothing.
4. A return to the first number from the second is therefore late, or begins an epoch of two units. These lines are held. A higher number
   shows that they were late. Another return shows that epochs have two units. If lines are repeated, as many prints as in rule 5 show it.
5. If only one number was ever printed, it is one unit, shown again, or one unit in each epoch. These lines are held. Epochs are established
   by more prints than one unit explains. One unit explains a print of each rank, or REDRAWN prints of a bar.

Lines that were held are counted as soon as the epochs are established, so none is lost.
"""

import dataclasses
import math
import re

GIB = 1 << 30
TIMES, RATES = {"s": 1.0, "ms": 1e-3}, {"per_s": 1.0}
"""Named groups that state the seconds of a unit, or the units in a second, each with its factor."""
SOURCE = re.compile(r"(?:\[(?:rank|default)\d+\]:\s?)+")
"""The prefix of one rank's lines, by torch and by torchrun (`--tee`); `default` is the role of ranks that have no other."""
LATE = 1
"""Numbers by which one rank may be later than another. A rank may print a number after another rank has printed the next one."""
REDRAWN = 3
"""Times that a rank may print the same line, as when a bar is redrawn."""
MOST_UNITS = 100_000
"""Most units that one line may add."""
SHORTEST_S, LONGEST_S = 1e-9, 1e9
"""Bounds of a step's seconds, which oppa refuses beyond them; an objective takes the place of the seconds or of their reciprocal."""
MOST_GIB = 2.0**32
"""More than oppa takes for the memory of a device."""
OBJECTIVE = "an objective"
THOUSANDS = re.compile(r"\s*[+-]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")
"""The beginning of a number with commas between its thousands."""
AMBIGUOUS = re.compile(r"\s*[+-]?[1-9][0-9]{0,2},[0-9]{3}(?:[eE][+-]?[0-9]+)?\s*")
"""A number whose comma separates thousands or is a decimal one; a program prints all its numbers in one way."""
NUMBERS = ("s", "ms", "per_s", "tokens_per_s", "value", "loss", "memory_gib")
"""Named groups whose texts are numbers."""
CLOCKED = ("s", "ms", "per_s")
"""Named groups whose numbers the clock can check."""
SHOWN = 40
"""Most characters of a text in a message."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrintedStep:
    """Describes one optimizer step."""

    seconds: float
    loss: float | None = None
    memory_bytes: int | None = None
    averaged: bool = False
    """True if the seconds are a mean that covers the step before, too: one line states several steps, or their lines came at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """Holds one unit: the facts of the line that added it, and whether it is the first of an epoch."""

    facts: dict
    begins: bool = False


class Numbers:
    """Decides which lines of a source add units, by the rule above. A source is one rank, or all ranks that print without a prefix."""

    def __init__(self, *, ranks):
        self.lateness = self.late = LATE if ranks > 1 else 0  # the lateness that is possible, and the one that is not ruled out yet
        self.copies = max(ranks, REDRAWN)
        self.first = self.last = None  # numbers of this epoch
        self.most = self.end = None  # the highest number of all epochs, and the last one of the epoch before
        self.printed = 0  # how often the first number was printed
        self.shared = self.begins = False  # whether a line was shown again, and whether the next unit begins an epoch
        self.in_doubt, self.held = False, []

    def units(self, facts):
        """Return the units that a line adds; units of held lines that are established now come first."""
        bar = facts.get("done") is not None
        number = facts["done"] if bar else facts.get("step")
        if number is None:
            return [Unit(facts=facts)]
        number = whole(number)
        if self.last is None:  # a run that was resumed begins at any number
            self.first = self.last = self.most = number
            self.printed = 1
            return self.add(facts, 1 if not bar else number if number <= 1 else 0)
        self.printed += number == self.first
        if number > self.last:
            return self.higher(number, facts, bar=bar)
        if number == self.last:
            return self.again(facts, bar=bar)
        return self.lower(number, facts, bar=bar)

    def higher(self, number, facts, *, bar):
        """Return the units up to a higher number, unless a late rank prints the last number of the epoch before."""
        if self.shared and self.late and not bar and self.last == self.first and number == self.end > self.first + 1:
            return []
        if number > self.most and (self.held or self.late < self.lateness):  # epochs are longer than they seemed
            self.last, self.held = self.most, []
            self.late, self.in_doubt, self.shared = self.lateness, False, True
        units, self.last, self.most = number - self.last, number, max(self.most, number)
        return self.add(facts, units)

    def again(self, facts, *, bar):
        """Return units for a repeated number only if no other is ever printed, in epochs of one unit; a bar prints 0 between them."""
        self.shared = True
        if bar or self.most > self.first:
            return []
        self.held.append(Unit(facts=facts, begins=True))
        return self.release() if self.printed > self.copies else []

    def lower(self, number, facts, *, bar):
        """Begin an epoch at a lower number, unless a late rank prints a number that another rank has printed."""
        maybe_late = self.late and not (bar and number == 0)
        near = self.last - number <= LATE
        returns = number == self.first and near
        if maybe_late and ((returns and self.most > self.first + 1) or (number > self.first and (near or not bar))):
            self.shared = True
            return []
        if not self.in_doubt:
            self.held = []  # these lines were repetitions
        if maybe_late and returns:
            self.in_doubt = self.printed <= self.copies if self.shared else not self.in_doubt
            self.late = self.lateness if self.in_doubt else 0
        self.printed = self.printed if number == self.first else 1
        self.end, self.first, self.last, self.begins = self.last, number, number, True
        return self.add(facts, number if bar else 1)

    def add(self, facts, count):
        """Return `count` units, and those held before; hold all of them while in doubt.

        Raises:
            ValueError: There are too many.
        """
        if count > MOST_UNITS:
            raise ValueError(f"the program prints the number {self.last}, which is {count} more than the one before")
        self.held += [Unit(facts=facts, begins=self.begins and place == 0) for place in range(count)]
        self.begins = self.begins and not count
        return [] if self.in_doubt else self.release()

    def release(self):
        """Return the held units, and hold none."""
        held, self.held = self.held, []
        return held


class StepCounter:
    """Turns lines into steps. A program may count from 0, from 1 or from any number, and start again in each epoch, however short."""

    def __init__(self, *, per_step=1, ranks, now_s, tokens=1, better=""):
        """Begin to count.

        Args:
            per_step: Units of an optimizer step.
            ranks: Ranks that may print.
            now_s: The time.
            tokens: Tokens of an optimizer step, of which lines may state the rate.
            better: `higher` or `lower` if lines state an objective, whose value then takes the place of a rate or of a time.
        """
        self.per_step, self.ranks = per_step, ranks
        self.times = TIMES | ({"value": 1.0} if better == "lower" else {})
        self.rates = RATES | {"tokens_per_s": tokens / per_step} | ({"value": 1.0} if better == "higher" else {})
        self.sources, self.seen, self.total = {}, {}, 0  # the numbers and the units of each source; the most units
        self.at_s = now_s
        self.rest, self.rest_s = 0, 0.0
        self.has_decimal_commas = None
        """True if the program prints decimal commas, False if commas separate thousands; None until a number shows it."""

    def read(self, lines, now_s):
        """Return the steps that lines complete.

        Args:
            lines: The facts of each line. Lines that came at once share the time since the lines before them.
        """
        has_begun = self.total > 0  # before the first unit, a program starts
        units = [unit for facts in lines for unit in self.units(facts)]
        self.learn_commas(lines, (now_s - self.at_s) / len(units) if units and has_begun else 0.0)
        if not units:
            self.at_s = now_s if any(facts.get("done") == "0" for facts in lines) else self.at_s
            return []
        share_s = (now_s - self.at_s) / len(units)
        self.at_s = now_s
        steps, before = [], None
        for unit in units:
            if step := self.step(unit, share_s):
                averaged = before is not None and (unit.facts is before or not self.states_time(unit.facts))
                steps.append(dataclasses.replace(step, averaged=averaged))
                before = unit.facts
        return steps

    def learn_commas(self, lines, share_s):
        """Note whether commas are decimal ones, as the numbers of the lines show, or else the seconds that passed for each unit.

        Args:
            lines: The facts of each line.
            share_s: The seconds; 0 if they are not known.
        """
        stated = [(name, text) for facts in lines for name in NUMBERS if "," in (text := facts.get(name) or "")]
        for name, text in stated:
            if not AMBIGUOUS.fullmatch(text):
                self.has_decimal_commas = not THOUSANDS.match(text)
            elif self.has_decimal_commas is None and name in CLOCKED and share_s > 0:
                factor, power = (TIMES | RATES)[name], -1 if name in RATES else 1
                thousands, decimal = (factor * float_in(text, decimal=each) ** power for each in (False, True))
                self.has_decimal_commas = abs(math.log(decimal / share_s)) < abs(math.log(thousands / share_s))

    def units(self, facts):
        """Return the units by which a line extends those of the source that is furthest."""
        source = facts.get("source")
        if source not in self.sources:
            self.sources[source], self.seen[source] = Numbers(ranks=1 if source else self.ranks), 0
        units = self.sources[source].units(facts)
        self.seen[source] += len(units)
        more = max(self.seen[source] - self.total, 0)
        self.total += more
        return units[len(units) - more :]

    def step(self, unit, share_s):
        """Return the step that a unit completes, or None; batches left over at the end of an epoch make no step of this configuration."""
        if unit.begins:
            self.rest, self.rest_s = 0, 0.0
        facts = unit.facts
        self.rest += 1
        self.rest_s += self.seconds(facts, share_s)
        if self.rest < self.per_step:
            return None
        step = PrintedStep(seconds=self.rest_s, loss=self.number(facts, "loss"), memory_bytes=in_bytes(self.number(facts, "memory_gib")))
        self.rest, self.rest_s = 0, 0.0
        return step

    def number(self, facts, name):
        """Return the number that a line states under a name; None if it states none."""
        return float_in(facts.get(name), decimal=self.has_decimal_commas)

    def states_time(self, facts):
        """Return whether a line states the seconds of its units, directly or as a rate."""
        return any(facts.get(name) for name in (*self.times, *self.rates))

    def seconds(self, facts, otherwise):
        """Return the seconds that a line states, directly or as a rate; else `otherwise`.

        Raises:
            ValueError: The number is not positive.
        """
        for names, power in ((self.times, 1), (self.rates, -1)):
            for name, factor in names.items():
                if facts.get(name):
                    what = OBJECTIVE if name == "value" else "a step time"
                    return seconds_of(facts[name], factor, power, what=what, decimal=self.has_decimal_commas)
        return otherwise


def seconds_of(text, factor, power, *, what, decimal=None):
    """Return the seconds that a printed number states, as a time if the power is 1, or as a rate if it is -1.

    Args:
        what: What the text states, for messages.
        decimal: Whether commas are decimal ones; None if that is not known.

    Raises:
        ValueError: The text is no positive number, or the seconds are out of bounds.
    """
    number = float_in(text, decimal=decimal)
    if number is None or not math.isfinite(number) or number <= 0:
        raise ValueError(f"the program prints `{text[:SHOWN]}`, but times, rates and objectives must be positive")
    log_s = math.log(factor) + power * math.log(number)
    if not math.log(SHORTEST_S) <= log_s <= math.log(LONGEST_S):
        unit = ", so state it in another unit" if what == OBJECTIVE else ""
        bounds = f"{what} has to lie between {SHORTEST_S:g} and {LONGEST_S:g}{unit}"
        raise ValueError(f"the program prints `{text[:SHOWN]}`, which is too large or too small: {bounds}")
    return factor * number**power


def whole(text):
    """Return the whole number that a text states; raises ValueError if it states none."""
    text = text.strip().replace(",", "")
    if not re.fullmatch("[+-]?[0-9]{1,18}", text):
        raise ValueError(f"the program prints `{text[:SHOWN]}` as the number of a step, which is no whole number")
    return int(text)


def float_in(text, *, decimal=None):
    """Return the number that a text states, NaN and infinity included: a loss that diverges was reported. None if there is none."""
    try:
        return float(with_point(text, decimal=decimal)) if text else None
    except ValueError:
        return None


def with_point(text, *, decimal=None):
    """Return a printed number without thousands separators and with a decimal point: `1,234.5`, `1.234,5` and `1234,5` are one number.

    A comma separates thousands if three digits follow it and a number from 1 to 999 comes before it, as in `2,976`. Any other one is a
    decimal comma, as in `0,052`. In a program that prints decimal commas, so is a single one of the first kind.
    """
    if THOUSANDS.match(text) and not (decimal and AMBIGUOUS.fullmatch(text)):
        return text.replace(",", "")
    return text.replace(".", "").replace(",", ".") if text.rfind(",") > text.rfind(".") else text


def facts_of(text, match):
    """Return the facts of a line that matched, with the source that its prefix names."""
    source = SOURCE.match(text)
    return match.groupdict() | {"source": source[0].rstrip() if source else None}


def in_bytes(gib):
    """Return GiB in bytes; None if there is no finite number."""
    return int(min(max(gib, -1.0), MOST_GIB) * GIB) if gib is not None and math.isfinite(gib) else None
