#!/bin/sh
# Runs atoll and ends with 0 where a restart would not help: compose can only tell 0 from the rest ("restart: on-failure").
# FINAL lists the exit codes that are an end; docs/operations.md explains each.
atoll "$@" &
child=$!
trap 'kill -TERM $child' TERM INT
wait $child
code=$?
while kill -0 $child 2>/dev/null; do # a signal has only ended the wait
    wait $child
    code=$?
done
for final in $FINAL; do
    [ "$code" = "$final" ] && echo "atoll ended with exit code $code: no restart" >&2 && exit 0
done
exit $code
