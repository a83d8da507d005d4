"""Command line of NInfer: run, chat, convert, inspect, verify."""
