// Go's locks as contenders of the benchmarks: redsync, rueidislock, and go-redis alone as the floor of the language.
//
//	rivals redsync|rueidislock|go-redis HOST:PORT..
//
// It is driven by lines, which benches/peer/src/lib.rs describes. A task is a goroutine. Here is what all of them do; how each of the
// libraries is used, and at which settings, stands in its own file.
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
	enterWait = 10 * time.Second // the longest that a task of `enter` waits: some of rueidislock's are never woken
	takeWait  = 30 * time.Second
	batch     = 64 // so many locks are taken at once before they are held
)

// library is what a contender locks with.
type library interface {
	// lock waits for a lock, at the library's own rhythm, and fails after `wait`. So many tasks use the library at the time.
	lock(key string, lease, wait time.Duration, tasks int) (lock, error)
}

// lock is what somebody holds.
type lock interface {
	unlock() error
	// lost is closed when the holder is told of a loss; nil where it never is.
	lost() <-chan struct{}
}

// errWaited is what `lock` returns after its wait.
var errWaited = errors.New("the wait is over")

// cannot is what a library has not.
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

// contender is a library, and what is held through it.
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
	case "let":
		return "gone", c.letGo()
	case "lose":
		return "watching", c.lose(rest[0], time.Duration(number(rest[1]))*time.Millisecond)
	case "usage":
		return fmt.Sprintf("usage %d", used()), nil
	}
	return "", cannot(fmt.Sprintf("`%s` is not known", words[0]))
}

// pairs has each task lock and unlock a key of its own for some time.
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

// enter has tasks want one key again and again, and writes down who was inside when.
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

// hold takes so many locks, a batch at a time.
func (c *contender) hold(count int, lease time.Duration) error {
	c.held = make([]lock, count)
	return inBatches(count, func(id int) (err error) {
		c.held[id], err = c.library.lock(fmt.Sprintf("held:%d", id), lease, takeWait, batch)
		return err
	})
}

// letGo unlocks what is held; what is not renewed may be over, which is no error here.
func (c *contender) letGo() error {
	err := inBatches(len(c.held), func(id int) error {
		_ = c.held[id].unlock()
		return nil
	})
	c.held = nil
	return err
}

// lose takes a lock, and says later when its holder was told of a loss.
func (c *contender) lose(key string, lease time.Duration) error {
	held, err := c.library.lock(key, lease, takeWait, 1)
	if err != nil {
		return err
	}
	lost := held.lost()
	if lost == nil {
		_ = held.unlock()
		return cannot("no holder is ever told of a loss")
	}
	go func() {
		<-lost
		say(fmt.Sprintf("lost %d", now()), nil)
	}()
	return nil
}

// inTasks runs something in so many goroutines, and returns the first error.
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

// say answers with a line, or with what went wrong.
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
