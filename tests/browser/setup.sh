#!/bin/sh
# Brings what the tests of the page need: a browser with its driver, from the distribution, and axe-core, from npm.
# What cannot be had is told by the tests, which are skipped then.
cd "$(dirname "$0")" || exit 1
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        npm=$(command -v npm >/dev/null || echo npm) # Debian's conflicts with one from elsewhere
        apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver $npm ||
            echo "chromium could not be installed; the tests of the page are skipped" >&2
    else
        echo "install chromium and its driver (Debian: apt-get install chromium chromium-driver), then run this again" >&2
    fi
fi
if [ ! -f .cache/package/axe.min.js ]; then
    mkdir -p .cache
    if command -v npm >/dev/null; then
        (cd .cache && npm pack --silent axe-core@4 >/dev/null && tar -xzf axe-core-4*.tgz package/axe.min.js) ||
            echo "axe-core could not be had from npm; the check of accessibility is skipped" >&2
    else
        echo "install npm, then run this again: axe-core comes from its registry" >&2
    fi
fi
exit 0
