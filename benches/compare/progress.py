"""A line that says what runs, and how long all of it will take."""

import sys
import time


class Progress:
    """Learns from the runs so far what the others will take."""

    def __init__(self, rows, out=None, clock=time.monotonic):
        # Of each row, the turns that it will take.
        self.rows, self.out, self.clock = list(rows), out or sys.stderr, clock
        self.done, self.turns_done, self.spent, self.turn_begun, self.name = 0, 0, 0.0, clock(), ""

    def begins(self, name):
        self.name, self.turn_begun = name, self.clock()
        self.show("begins")

    def ran(self, turn, wanted):
        """The turn of a row is over; the first of each warmed up, and made the devices."""
        now = self.clock()
        self.turns_done, self.spent = self.turns_done + 1, self.spent + now - self.turn_begun
        self.turn_begun = now
        self.show(f"pair {turn} of {wanted}", turns_of_row=turn + 1)

    def ends(self):
        self.done += 1
        self.clear()

    def left(self, turns_of_row=0):
        """Seconds, as far as can be told; `None` before anything ran."""
        if self.turns_done == 0:
            return None
        turns = sum(self.rows[self.done :]) - turns_of_row
        return max(turns, 0) * self.spent / self.turns_done

    def show(self, what, turns_of_row=0):
        left = self.left(turns_of_row)
        time_left = "" if left is None else f", {int(left) // 60}:{int(left) % 60:02} left"
        line = f"[{self.done + 1}/{len(self.rows)}] {self.name}: {what}{time_left}"
        if self.out.isatty():
            print(f"\r\x1b[K{line}", end="", file=self.out, flush=True)
        elif what == "begins":
            # A log gets a line for each row.
            print(line, file=self.out, flush=True)

    def clear(self):
        if self.out.isatty():
            print("\r\x1b[K", end="", file=self.out, flush=True)
