// Go's locks as contenders of the benchmarks: redsync, rueidislock, and go-redis alone as the floor
// of the language.
//
//	rivals redsync|rueidislock|go-redis HOST:PORT..
//
// benches/peer/src/lib.rs defines the protocol. A task is a goroutine. The file of each library
// describes its use and its settings.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lease     = 30 * time.Second
	enterWait = 10 * time.Second // the longest wait of a task of `enter`: rueidislock does not wake some waiters
	takeWait  = 30 * time.Second
	batch     = 64 // the number of locks that are acquired at a time
)

// library is the lock library of a contender.
type library interface {
	// lock waits for a lock as the library does by default, and fails after `wait`. `tasks` is the
	// number of concurrent users.
	lock(key string, lease, wait time.Duration, tasks int) (lock, error)
}

// lock is a held lock.
type lock interface {
	unlock() error
	// lost is closed when the library reports a loss; nil if it never does.
	lost() <-chan struct{}
}

// errWaited is what `lock` returns after its wait.
var errWaited = errors.New("the wait is over")

// cannot is the reason why a library does not support an order.
type cannot string

func (why cannot) Error() string { return string(why) }

func main() {
	library, err := connected(os.Args[1], os.Args[2:])
	if err != nil {
		say("", err)
		return
	}
	contender := contender{library: library}
	say("ready", nil)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		say(contender.answer(strings.Split(lines.Text(), " ")))
	}
}

func connected(name string, servers []string) (library, error) {
	switch name {
	case "redsync":
		return newRedsync(servers)
	case "rueidislock":
		return newRueidislock(servers)
	case "go-redis":
		return newPlain(servers)
	}
	return nil, fmt.Errorf("no rival is called %s", name)
}

// contender is a library, and the locks that it holds.
type contender struct {
	library library
	taken   lock
	held    []lock
}

func (c *contender) answer(words []string) (string, error) {
	switch command, rest := words[0], words[1:]; command {
	case "pairs":
		return c.pairs(number(rest[0]), time.Duration(number(rest[1]))*time.Millisecond)
	case "enter":
		body, file := time.Duration(number(rest[2]))*time.Microsecond, strings.Join(rest[5:], " ")
		return c.enter(rest[0], number(rest[1]), body, nanos(rest[3]), nanos(rest[4]), file)
	case "take":
		taken, err := c.library.lock(rest[0], lease, takeWait, 1)
		inside := now()
		c.taken = taken
		return fmt.Sprintf("taken %d", inside), err
	case "free":
		leaving := now()
		return fmt.Sprintf("freed %d", leaving), c.taken.unlock()
	case "hold":
		return "holding", c.hold(number(rest[0]), time.Duration(number(rest[1]))*time.Millisecond)
	case "release":
		return "released", c.release()
	case "lose":
		return "watching", c.lose(rest[0], time.Duration(number(rest[1]))*time.Millisecond)
	case "usage":
		return fmt.Sprintf("usage %d", used()), nil
	}
	return "", cannot(fmt.Sprintf("`%s` is not known", words[0]))
}

// pairs lets each task lock and unlock a different key for `span`.
func (c *contender) pairs(tasks int, span time.Duration) (string, error) {
	counts := make([]int, tasks)
	begun, usedBefore := now(), used()
	end := begun + int64(span)
	err := inTasks(tasks, func(task int) error {
		key := fmt.Sprintf("bench:%d", task)
		for now() < end {
			held, err := c.library.lock(key, lease, enterWait, tasks)
			if err == nil {
				err = held.unlock()
			}
			if err != nil {
				return err
			}
			counts[task]++
		}
		return nil
	})
	took, usage, sum := now()-begun, used()-usedBefore, 0
	for _, count := range counts {
		sum += count
	}
	return fmt.Sprintf("pairs %d %d %d", sum, took, usage), err
}

// enter lets tasks contend for one key repeatedly, and writes an entry per hold.
func (c *contender) enter(key string, tasks int, body time.Duration, start, end int64, file string) (string, error) {
	notes := make([][]byte, tasks)
	time.Sleep(time.Duration(start - now()))
	err := inTasks(tasks, func(task int) error {
		for {
			asked := now()
			if asked >= end {
				return nil
			}
			held, err := c.library.lock(key, lease, enterWait, tasks)
			if errors.Is(err, errWaited) {
				continue
			}
			if err != nil {
				return err
			}
			entered := now()
			if body > 0 {
				time.Sleep(body)
			}
			left := now()
			for _, word := range []int64{entered, asked, int64(task), left} {
				notes[task] = binary.LittleEndian.AppendUint64(notes[task], uint64(word))
			}
			if err := held.unlock(); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return "", err
	}
	var all []byte
	for _, notes := range notes {
		all = append(all, notes...)
	}
	return fmt.Sprintf("entered %d", len(all)/32), os.WriteFile(file, all, 0o600)
}

// hold acquires `count` locks, a batch at a time.
func (c *contender) hold(count int, lease time.Duration) error {
	c.held = make([]lock, count)
	return inBatches(count, func(id int) (err error) {
		c.held[id], err = c.library.lock(fmt.Sprintf("held:%d", id), lease, takeWait, batch)
		return err
	})
}

// release unlocks held locks. A lock that is not renewed may have expired, which is not an error
// here.
func (c *contender) release() error {
	err := inBatches(len(c.held), func(id int) error {
		_ = c.held[id].unlock()
		return nil
	})
	c.held = nil
	return err
}

// lose acquires a lock, and reports later when the library reported its loss.
func (c *contender) lose(key string, lease time.Duration) error {
	held, err := c.library.lock(key, lease, takeWait, 1)
	if err != nil {
		return err
	}
	lost := held.lost()
	if lost == nil {
		_ = held.unlock()
		return cannot("it does not report a loss")
	}
	go func() {
		<-lost
		say(fmt.Sprintf("lost %d", now()), nil)
	}()
	return nil
}

// inTasks runs a function in `tasks` goroutines, and returns the first error.
func inTasks(tasks int, run func(task int) error) error {
	errs := make(chan error, tasks)
	var all sync.WaitGroup
	for task := range tasks {
		all.Go(func() {
			if err := run(task); err != nil {
				errs <- err
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}

func inBatches(count int, run func(id int) error) error {
	return inTasks(min(batch, count), func(first int) error {
		for id := first; id < count; id += batch {
			if err := run(id); err != nil {
				return err
			}
		}
		return nil
	})
}

// now reads the clock that all processes share.
func now() int64 { return read(unix.CLOCK_MONOTONIC) }

// used is the processor time of this process, in user and in kernel mode.
func used() int64 { return read(unix.CLOCK_PROCESS_CPUTIME_ID) }

func read(clock int32) int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(clock, &time); err != nil {
		panic(err)
	}
	return time.Nano()
}

func number(word string) int { return int(nanos(word)) }

func nanos(word string) int64 {
	number, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		panic(err)
	}
	return number
}

var speaking sync.Mutex

// say writes an answer, or the error.
func say(answer string, err error) {
	speaking.Lock()
	defer speaking.Unlock()
	var why cannot
	switch {
	case errors.As(err, &why):
		answer = "cannot " + why.Error()
	case err != nil:
		answer = "failed " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	fmt.Println(answer)
}
