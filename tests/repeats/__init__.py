"""Tests that depend on threads, processes, sleeps or the wall clock, run a hundred times each: ``make repeats``."""
