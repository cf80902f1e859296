/* What the bindings are made from. */
#include <spdk/env.h>
#include <spdk/log.h>
#include <spdk/nvme.h>
#include <spdk/version.h>
#include "process.h"
