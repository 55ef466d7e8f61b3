"""Runtimes: who answers a program's questions. Programs cannot tell them apart."""
