#!/bin/sh
# Runs once for each message: the step's input comes on standard input, its output goes to standard output. It needs jq.
# An error fails the attempt, with these words.
exec jq -c 'if .name then {greeting: "Hello, \(.name)!"} else error("nobody to greet: the message has no name") end'
