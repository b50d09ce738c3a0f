// Preloaded into a process, this simulates a silent name server: a lookup takes ten seconds and
// fails.
#include <netdb.h>
#include <unistd.h>

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    (void)node;
    (void)service;
    (void)hints;
    (void)found;
    sleep(10);
    return EAI_AGAIN;
}
