#!/bin/sh
# Fetches promtool out of Debian's package prometheus, without the server, which would start by itself.
set -e
command -v promtool > /dev/null && exit 0
folder=$(mktemp -d)
cd "$folder"
chmod 755 .
apt-get -qq update
apt-get -qq download prometheus
dpkg -x prometheus_*.deb .
install usr/bin/promtool /usr/local/bin/
rm -r "$folder"
promtool --version | head -n 1
