#!/bin/sh
# {"lengths": [ … ]} becomes {"longest": …}.
exec jq -c '{longest: (.lengths | max_by(.length) | .word)}'
