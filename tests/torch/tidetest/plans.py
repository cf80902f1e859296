"""Plans that are waited for, so that which step follows one is no matter of luck."""

import functools


def awaited(end_step):
    """Ends a step as `end_step` does, and waits for a plan that is being made."""

    @functools.wraps(end_step)
    def end_and_wait(tide, *arguments):
        end_step(tide, *arguments)
        if not tide.is_paused:
            tide.await_plan()

    return end_and_wait
