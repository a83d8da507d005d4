"""What tests use: the pytest plug-in, conformance cases for plug-in authors, and fakes.

Import the module you need; importing the package alone imports nothing else.
"""
