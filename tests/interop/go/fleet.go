// A client that uses SET NX: redsync, driven by text lines. See tests/support/fleet.rs.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// The pause after a hold. Pollers that do not pause starve each other.
const rest = 30 * time.Millisecond

var (
	ctx    = context.Background()
	server *redis.Client
	locks  *redsync.Redsync
	held   *redsync.Mutex
)

func millis(text string) time.Duration {
	ms, _ := strconv.Atoi(text)
	return time.Duration(ms) * time.Millisecond
}

// made returns a lock that waits as long as its context allows, with the retry delay of redsync.
func made(name, lease string) *redsync.Mutex {
	return locks.NewMutex(name, redsync.WithExpiry(millis(lease)), redsync.WithTries(1<<30))
}

func soak(name, counter, seconds, hold, lease string) (string, error) {
	length, _ := strconv.ParseFloat(seconds, 64)
	within, cancel := context.WithTimeout(ctx, time.Duration(length*float64(time.Second)))
	defer cancel()
	count := 0
	for within.Err() == nil {
		lock := made(name, lease)
		if lock.LockContext(within) != nil {
			continue
		}
		seen, err := server.Get(ctx, counter).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return "", err
		}
		time.Sleep(millis(hold))
		if err := server.Set(ctx, counter, seen+1, 0).Err(); err != nil {
			return "", err
		}
		if _, err := lock.Unlock(); err != nil {
			return "", err
		}
		count++
		time.Sleep(rest)
	}
	return fmt.Sprintf("done %d", count), nil
}

func answer(words []string) (string, error) {
	switch words[0] {
	case "lock":
		held = made(words[1], words[2])
		return "locked", held.Lock()
	case "try":
		wanted := made(words[1], words[2])
		if wanted.TryLock() != nil {
			return "taken", nil
		}
		held = wanted
		return "locked", nil
	case "extend":
		done, err := held.Extend()
		if err == nil && !done {
			err = errors.New("not the owner")
		}
		return "extended", err
	case "unlock":
		_, err := held.Unlock()
		return "unlocked", err
	case "soak":
		return soak(words[1], words[2], words[3], words[4], words[5])
	}
	return "", errors.New("no such command")
}

func main() {
	options, err := redis.ParseURL(os.Args[1])
	if err != nil {
		panic(err)
	}
	server = redis.NewClient(options)
	locks = redsync.New(goredis.NewPool(server))
	if err := server.Ping(ctx).Err(); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan() && lines.Text() != "quit"; {
		reply, err := answer(strings.Fields(lines.Text()))
		if err != nil {
			reply = "failed " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(reply)
	}
}
