# shellcheck shell=bash
# A virtual machine that boots from a served device.
: "${keepstone?is set by run.sh}" "${root?is set by run.sh}"

suite_machine() {
    KEEPSTONE=$keepstone "$root/scripts/machine/vm-boot.sh"
}
