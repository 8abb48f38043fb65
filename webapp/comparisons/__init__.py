"""Candidate against baseline, computed once per finished experiment."""
