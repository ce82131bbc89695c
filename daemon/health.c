/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/health.h"

#include <systemd/sd-daemon.h>

#include "daemon/daemon.h"
#include "daemon/loop/log.h"
#include "daemon/core/core.h"

/* Between two looks where there is no watchdog: a check of an idle device takes some 10 us of its worker. */
#define LOOK_MS 5000u

static bool watcher_gets_on(struct health *health) {
    struct watcher *watcher = &health->daemon->watcher;
    bool alive = !watcher->started || worker_is_alive(&watcher->worker);

    if (!alive && !health->watcher_stalled)
        log_warning(
            "the driver's list of processes (NVML) does not come: memory of processes that ended stays in "
            "quarantine until it does; systemd's watchdog is not answered");
    else if (alive && health->watcher_stalled)
        log_warning("the driver's list of processes comes again");
    health->watcher_stalled = !alive;
    return alive;
}

static void health_on_timer(uv_timer_t *timer) {
    struct health *health = timer->data;
    struct daemon *daemon = health->daemon;
    bool alive = watcher_gets_on(health);

    for (unsigned i = 0; i < daemon->core->n_pools; i++) {
        alive = supplier_is_alive(daemon->core->pools[i]->owner) && alive;
        supplier_check(daemon->core->pools[i]->owner);
    }
    if (alive && health->watchdog)
        notifier_tell(&daemon->notifier, "WATCHDOG=1");
}

void health_start(struct health *health, struct daemon *daemon) {
    uint64_t watchdog_us, period_ms = LOOK_MS;

    *health = (struct health){.daemon = daemon};
    health->watchdog = sd_watchdog_enabled(0, &watchdog_us) > 0;
    if (health
            ->watchdog) /* systemd's advice is half the time; a worker is found to hang at the second look */
        period_ms = watchdog_us / 1000 / 3 + 1;
    uv_timer_init(&daemon->loop, &health->timer);
    health->timer.data = health;
    uv_timer_start(&health->timer, health_on_timer, 0, period_ms);
}
