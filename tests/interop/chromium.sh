#!/bin/sh
# Installs Chromium, in which the console is tried; Playwright drives Debian's, and fetches none of its own.
set -e
command -v chromium > /dev/null && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core > /dev/null
chromium --version
