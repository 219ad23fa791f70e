# Builds a module in /build for a kernel's release from Debian's packages, in a root that holds these. The
# arguments are the release, the module's folder in drivers/infiniband, the option of its configuration and, if the
# architecture is foreign, the prefix of its compiler's name.
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/tmp LC_ALL=C
ln -sf mawk /usr/bin/awk # installing mawk would do this
mkdir /build
cd /build
tar -xf /usr/src/linux-source-*.tar.xz --strip-components=5 --wildcards "*/drivers/infiniband/$2"
make -j$(nproc) -C /usr/src/linux-headers-$1 M=$PWD $3=m ${4:+CROSS_COMPILE=$4} modules
