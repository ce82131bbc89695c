/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon of the program restarts: it is started, found, asked, and what is stored for it is counted. */
#include "tests/gpu/restarts_daemon.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_MAX (256u << 10) /* of the admin socket */
/* The sockets of the units in systemd/. */
#define UNIT_SOCKET "/run/gpupool/gpupool.sock"
#define UNIT_ADMIN  "/run/gpupool-admin/admin.sock"
/* The control group in which systemd has a unit's processes. */
#define UNIT_PROCESSES "/sys/fs/cgroup/system.slice/%s/cgroup.procs"
#define SYSTEMD        1

/* --- start and end --- */

static bool write_config(const char *path, const struct restarts_pools_setting *setting) {
    FILE *file = fopen(path, "we");

    return file != NULL &&
           fprintf(file,
                   "[device]\nlimit = %uMiB\nstep = 2MiB\nlow_water = 0\nexport = vmm\n"
                   "[host]\nlimit = %uMiB\nstep = 2MiB\nlow_water = 0\nhuge_pages = off\n",
                   setting->device_mib, setting->host_mib) > 0 &&
           fclose(file) == 0;
}

_Noreturn static void be_keeper(const struct restarts_daemon *daemon, const char *config, const char *gpu,
                                int ready) {
    const char *program = getenv("GPUPOOL_DAEMON");
    int log = open(daemon->log_path, O_WRONLY | O_APPEND | O_CLOEXEC);
    char number[16];

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    snprintf(number, sizeof number, "%d", ready);
    execl(program, program, "--keeper", "--config", config, "--gpu", gpu, "--socket", daemon->socket,
          "--admin-socket", daemon->admin, "--ready-fd", number, (char *)NULL);
    _exit(127);
}

const char *restarts_keep(struct restarts_daemon *daemon, const char *folder,
                          const struct restarts_pools_setting *setting) {
    char config[96], byte;
    int ready[2];

    *daemon = (struct restarts_daemon){0};
    snprintf(daemon->socket, sizeof daemon->socket, "%s/d.sock", folder);
    snprintf(daemon->admin, sizeof daemon->admin, "%s/a.sock", folder);
    snprintf(daemon->log_path, sizeof daemon->log_path, "%s/log", folder);
    snprintf(config, sizeof config, "%s/conf", folder);
    setenv("GPUPOOL_SOCKET", daemon->socket, 1);
    setenv("XDG_RUNTIME_DIR", folder, 1);
    if (!write_config(config, setting))
        return "the configuration cannot be written";
    daemon->log = fopen(daemon->log_path, "a+e");
    if (daemon->log == NULL || pipe(ready) < 0 || (daemon->manager = fork()) < 0)
        return "the keeper cannot be started";
    if (daemon->manager == 0) {
        close(ready[0]);
        be_keeper(daemon, config, setting->gpu, ready[1]);
    }
    close(ready[1]);
    ssize_t n = read(ready[0], &byte, 1);
    while (n == 1 && read(ready[0], &byte, 1) > 0) { /* from now on the keeper has the descriptors that it keeps open */
    }
    close(ready[0]);
    snprintf(daemon->processes, sizeof daemon->processes, "/proc/%d/task/%d/children", (int)daemon->manager,
             (int)daemon->manager);
    return n == 1 ? NULL : "the daemon does not become ready";
}

const char *restarts_adopt(struct restarts_daemon *daemon, const char *unit, const char *log_path) {
    *daemon = (struct restarts_daemon){.unit = unit, .manager = SYSTEMD};
    snprintf(daemon->socket, sizeof daemon->socket, "%s", UNIT_SOCKET);
    snprintf(daemon->admin, sizeof daemon->admin, "%s", UNIT_ADMIN);
    snprintf(daemon->log_path, sizeof daemon->log_path, "%s", log_path);
    snprintf(daemon->processes, sizeof daemon->processes, UNIT_PROCESSES, unit);
    setenv("GPUPOOL_SOCKET", daemon->socket, 1);
    daemon->log = fopen(log_path, "re");
    if (daemon->log == NULL)
        return "the unit's log cannot be read";
    return restarts_find(daemon) > 0 ? NULL : "the unit has no process";
}

bool restarts_end_keeper(struct restarts_daemon *daemon) {
    int status;

    kill(daemon->manager, SIGTERM);
    return waitpid(daemon->manager, &status, 0) == daemon->manager && status == 0;
}

/* --- the process --- */

pid_t restarts_find(const struct restarts_daemon *daemon) {
    int pid = 0;
    FILE *file = fopen(daemon->processes, "re");

    if (file != NULL && fscanf(file, "%d", &pid) != 1)
        pid = 0;
    if (file != NULL)
        fclose(file);
    return pid;
}

unsigned restarts_count_ready(struct restarts_daemon *daemon) {
    char line[1024];

    for (;;) {
        long begin = ftell(daemon->log);
        clearerr(daemon->log);
        if (fgets(line, sizeof line, daemon->log) == NULL)
            return daemon->n_ready;
        if (strchr(line, '\n') == NULL && strlen(line) + 1 < sizeof line) { /* its end is still to come */
            fseek(daemon->log, begin, SEEK_SET);
            return daemon->n_ready;
        }
        daemon->n_ready += strstr(line, ": serving ") != NULL;
    }
}

/* systemd(1): SIGTERM is systemctl daemon-reexec. */
void restarts_execute_manager(const struct restarts_daemon *daemon) {
    kill(daemon->manager, daemon->unit != NULL ? SIGTERM : SIGUSR2);
}

void restarts_be_upgrade(const struct restarts_daemon *daemon) {
    const char *program = getenv("GPUPOOLCTL");
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

    program = program == NULL ? "gpupoolctl" : program;
    dup2(nothing, STDIN_FILENO); /* a question ends it */
    dup2(nothing, STDOUT_FILENO);
    execlp(program, program, "--admin-socket", daemon->admin, "upgrade", (char *)NULL);
    perror(program);
    _exit(127);
}

/* --- what it says --- */

const char *restarts_ask(const struct restarts_daemon *daemon, const char *command) {
    static char answer[ANSWER_MAX];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char question[64];
    size_t size = 0;

    snprintf(address.sun_path, sizeof address.sun_path, "%s", daemon->admin);
    int length = snprintf(question, sizeof question, "{\"command\":\"%s\"}\n", command);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return NULL;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        send(fd, question, (size_t)length, MSG_NOSIGNAL) == length)
        for (ssize_t n = 1; n > 0 && size + 1 < sizeof answer && (size == 0 || answer[size - 1] != '\n');
             size += n > 0 ? (size_t)n : 0)
            n = recv(fd, answer + size, sizeof answer - 1 - size, 0);
    close(fd);
    answer[size] = '\0';
    return size > 0 && answer[size - 1] == '\n' ? answer : NULL;
}

bool restarts_log_says(const struct restarts_daemon *daemon, const char *word) {
    char command[256];

    snprintf(command, sizeof command, "grep -q '%s' %s", word, daemon->log_path);
    return system(command) == 0;
}

void restarts_show_log(const struct restarts_daemon *daemon) {
    char command[256];

    snprintf(command, sizeof command, "tail -n 20 %s >&2", daemon->log_path);
    (void)!system(command);
}

/* --- its descriptors in the store, its memory and its records --- */

/* The sum of all numbers that have the key. */
static uint64_t sum(const char *answer, const char *key) {
    char quoted[64];
    uint64_t total = 0;

    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    for (const char *at = answer; (at = strstr(at, quoted)) != NULL;)
        total += strtoull(at += strlen(quoted), NULL, 10);
    return total;
}

/* All descriptors of a process. */
static uint64_t count_descriptors(pid_t pid) {
    char folder[64];
    uint64_t n = 0;

    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
    DIR *directory = opendir(folder);
    while (directory != NULL && readdir(directory) != NULL)
        n++;
    if (directory != NULL)
        closedir(directory);
    return n;
}

/* systemd has descriptors of its own, whose number changes. */
static uint64_t count_stored_by_systemd(const char *unit) {
    char command[128];
    unsigned n = 0;

    snprintf(command, sizeof command, "systemctl show --value --property NFileDescriptorStore %s", unit);
    FILE *answer = popen(command, "re");
    if (answer == NULL)
        return 0;
    if (fscanf(answer, "%u", &n) != 1)
        n = 0;
    pclose(answer);
    return n;
}

/* The manager's descriptors that the daemon does not store, as far as it knows. */
static uint64_t count_unknown(const struct restarts_daemon *daemon, const char *estate) {
    uint64_t n =
        daemon->unit != NULL ? count_stored_by_systemd(daemon->unit) : count_descriptors(daemon->manager);

    return n - sum(estate, "stored");
}

/* Segments that are free stay, each with a descriptor and a record. So: beside those of segments. */
static uint64_t count_others(const char *estate, const char *key) {
    return sum(estate, key) - sum(estate, "kept_segments");
}

const char *restarts_note_store(struct restarts_daemon *daemon) {
    const char *estate = restarts_ask(daemon, "estate");

    if (estate == NULL || strstr(estate, "\"kept\":true") == NULL)
        return "the daemon has no estate";
    daemon->unknown = count_unknown(daemon, estate);
    daemon->others = count_others(estate, "stored");
    daemon->records = count_others(estate, "records");
    return NULL;
}

/* The first of these members whose sum is not 0; NULL: there is none. */
static const char *find_sum(const char *answer, const char *const *keys, size_t n, uint64_t *ret_sum) {
    for (size_t i = 0; i < n; i++)
        if ((*ret_sum = sum(answer, keys[i])) > 0)
            return keys[i];
    return NULL;
}

static const char *find_left_in_pools(const struct restarts_daemon *daemon, uint64_t *ret_amount) {
    static const char *const counts[] = {"leased_bytes", "quarantined_bytes", "fenced_bytes", "waiters"};
    const char *answer = restarts_ask(daemon, "pools");

    if (answer == NULL)
        return "no answer about the pools";
    const char *left = find_sum(answer, counts, sizeof counts / sizeof *counts, ret_amount);
    if (left != NULL)
        return left;
    *ret_amount = sum(answer, "reserved_bytes") - sum(answer, "free_bytes");
    return *ret_amount > 0 ? "bytes that are neither free nor anyone's" : NULL;
}

static const char *find_left_in_store(const struct restarts_daemon *daemon, uint64_t *ret_amount) {
    static const char *const counts[] = {"lost_bytes", "orphan_bytes", "lost"};
    const char *answer = restarts_ask(daemon, "estate");

    if (answer == NULL)
        return "no answer about the estate";
    const char *left = find_sum(answer, counts, sizeof counts / sizeof *counts, ret_amount);
    if (left != NULL)
        return left;
    if ((*ret_amount = count_others(answer, "stored") - daemon->others) > 0)
        return "descriptors in the store beside those of segments";
    *ret_amount = count_others(answer, "records") - daemon->records;
    if ((int64_t)*ret_amount > 0) /* fewer: the first daemon kept more (tests/versions/later.c) */
        return "records in the estate beside those of segments";
    *ret_amount = count_unknown(daemon, answer) - daemon->unknown;
    return *ret_amount > 0 ? "descriptors in the store that the daemon does not know" : NULL;
}

const char *restarts_find_left(const struct restarts_daemon *daemon, uint64_t *ret_amount) {
    *ret_amount = 1;
    const char *answer = restarts_ask(daemon, "sessions");
    if (answer == NULL)
        return "no answer about the sessions";
    if (strstr(answer, "\"sessions\":[]") == NULL)
        return "sessions";
    answer = restarts_ask(daemon, "parcels");
    if (answer == NULL || strstr(answer, "\"parcels\":[]") == NULL)
        return "parcels";
    const char *left = find_left_in_pools(daemon, ret_amount);
    return left != NULL ? left : find_left_in_store(daemon, ret_amount);
}
