"""Replacements for parts of the operating system, for tests of this project and of projects that build on
it.
"""
