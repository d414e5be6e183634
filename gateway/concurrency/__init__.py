"""Small building blocks for code that shares an event loop or the interpreter lock with other work.

`bounded_wait` waits for a future with a time limit that is fair when the event loop itself was late. `gil_yield`
lets a thread with long calls hand the interpreter lock (GIL) to the event loop. `loop_supervisor` restarts
background loops that crash.
"""
