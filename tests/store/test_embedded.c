/* The contract, run on the embedded store. */
#include "contract.h"

#include "store/embedded.h"

static void open_checked(struct rig *rig)
{
    rig_open(rig);
    embedded_check_always(rig->store);
}

static const struct contract_backend backend = {
    .name = "store/embedded contract",
    .init = rig_init,
    .open = open_checked,
    .close = rig_close,
    .done = rig_done,
    .has_needs = true,
};

int main(void)
{
    return contract_run(&backend);
}
