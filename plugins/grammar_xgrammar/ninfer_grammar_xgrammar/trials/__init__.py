"""Grammars are tried in a process that can be ended before the engine's process compiles them.

The library cannot be interrupted, and no measure of a source says how long it will take. So a
process beside the engine (:mod:`.process`) holds the library and the vocabulary, forks a job for
each source, and kills those that take too long. What went well there is compiled again in the
engine's process, which takes as long as it took there: handing over what was compiled would take
longer (a schema of 400 optional members is compiled in 2 s, and written out in 35).
"""
