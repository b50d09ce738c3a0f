// Preloaded into a process, it makes its name server one that is silent: a lookup takes ten seconds and finds nothing.
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
