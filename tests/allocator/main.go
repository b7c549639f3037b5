// Checks Kubernetes' allocator of devices against a search through all possibilities, for devices that several
// claims share and that take from shared counters.
//
//	go run . CASES MODE...      modes of sharing to draw from: none, places, memory, unlimited
//
// Each case is a node with one or two GPUs of four units. A GPU is to be had whole or in partitions of one, two or
// four units, and each kind of device is shared in one of the modes. Some devices are in use. A pod has one to three
// claims of one or two requests, with counts, prioritized lists, amounts of memory and a constraint. It prints how
// often the allocator gave out what is not free (DOUBLE) or found nothing although there is a way (FALSE REFUSAL),
// and the shortest of each. Other releases: change the versions in go.mod, then `go mod tidy`.
package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"strconv"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

const drv, node = "d", "n"

// dev is a device; without a mode, one claim at a time has it.
type dev struct {
	name, kind string
	gpu        int
	units      []int
	mode       string // "", places, memory, unlimited
	places     int64
	mem        int64
}

// use is what one allocation result takes of a device.
type use struct {
	d           *dev
	mem, shares int64
}

type req struct {
	kind  string // of a device, or "any", or "shared"
	count int
	mem   int64 // 0: it does not ask for an amount
}
type request struct{ alts []req }
type claim struct {
	reqs  []request
	match bool
}

// state is what is in use: how often each device, how much of it, and the units of the GPUs.
type state struct {
	n     map[*dev]int
	mem   map[*dev]int64
	sh    map[*dev]int64
	units map[[2]int]int
}

func newState() *state {
	return &state{map[*dev]int{}, map[*dev]int64{}, map[*dev]int64{}, map[[2]int]int{}}
}

// consumption tells what a request takes of a device, and whether the device is large enough.
func consumption(d *dev, r req) (use, bool) {
	u := use{d: d}
	if d.mode == "" {
		return u, r.mem <= d.mem
	}
	switch {
	case r.mem > 0:
		u.mem = r.mem
	case d.mode == "memory":
		u.mem = 1
	}
	if d.mode == "places" {
		u.shares = 1
	}
	return u, u.mem <= d.mem
}

// add takes it, unless it is not free.
func (s *state) add(u use) bool {
	d := u.d
	if d.mode == "" && s.n[d] > 0 {
		return false
	}
	if d.mode != "" && (s.mem[d]+u.mem > d.mem || (d.mode == "places" && s.sh[d]+u.shares > d.places)) {
		return false
	}
	if s.n[d] == 0 {
		for _, x := range d.units {
			if s.units[[2]int{d.gpu, x}] > 0 {
				return false
			}
		}
		for _, x := range d.units {
			s.units[[2]int{d.gpu, x}]++
		}
	}
	s.n[d]++
	s.mem[d] += u.mem
	s.sh[d] += u.shares
	return true
}
func (s *state) del(u use) {
	d := u.d
	s.n[d]--
	s.mem[d] -= u.mem
	s.sh[d] -= u.shares
	if s.n[d] == 0 {
		for _, x := range d.units {
			s.units[[2]int{d.gpu, x}]--
		}
	}
}
func fits(d *dev, r req) bool {
	switch r.kind {
	case "any":
		return true
	case "shared":
		return d.mode != ""
	}
	return d.kind == r.kind
}

// search goes through all possibilities, device by device.
type search struct {
	devs   []*dev
	claims []claim
	st     *state
	got    []use
}

func (s *search) solve(c, r, alt, i, from, gpu int) bool {
	if c == len(s.claims) {
		return true
	}
	if r == len(s.claims[c].reqs) {
		return s.solve(c+1, 0, -1, 0, 0, -1)
	}
	rq := s.claims[c].reqs[r]
	if alt < 0 {
		for a := range rq.alts {
			if s.solve(c, r, a, 0, 0, gpu) {
				return true
			}
		}
		return false
	}
	x := rq.alts[alt]
	if i == x.count {
		return s.solve(c, r+1, -1, 0, 0, gpu)
	}
	for k := from; k < len(s.devs); k++ {
		d := s.devs[k]
		if !fits(d, x) || (s.claims[c].match && gpu >= 0 && d.gpu != gpu) {
			continue
		}
		u, ok := consumption(d, x)
		if !ok || !s.st.add(u) {
			continue
		}
		s.got = append(s.got, u)
		if s.solve(c, r, alt, i+1, k+1, d.gpu) {
			return true
		}
		s.got = s.got[:len(s.got)-1]
		s.st.del(u)
	}
	return false
}

type lister struct {
	m map[string]*resourceapi.DeviceClass
}

func (l lister) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }
func (l lister) Get(n string) (*resourceapi.DeviceClass, error) {
	return l.m[n], nil
}

func q(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }
func p[T any](x T) *T             { return &x }

func rng(def, min, max int64) *resourceapi.CapacityRequestPolicy {
	return &resourceapi.CapacityRequestPolicy{Default: p(q(def)), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: p(q(min)), Max: p(q(max)), Step: p(q(1))}}
}

func slices(devs []*dev, gpus, units int) []*resourceapi.ResourceSlice {
	pool := resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 2}
	cs := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: resourceapi.ResourceSliceSpec{Driver: drv, Pool: pool, NodeName: p(node)}}
	for g := 0; g < gpus; g++ {
		set := resourceapi.CounterSet{Name: fmt.Sprintf("g%d", g), Counters: map[string]resourceapi.Counter{}}
		for u := 0; u < units; u++ {
			set.Counters[fmt.Sprintf("u%d", u)] = resourceapi.Counter{Value: q(1)}
		}
		cs.Spec.SharedCounters = append(cs.Spec.SharedCounters, set)
	}
	ds := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: resourceapi.ResourceSliceSpec{Driver: drv, Pool: pool, NodeName: p(node)}}
	for _, d := range devs {
		x := resourceapi.Device{Name: d.name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"kind": {StringValue: p(d.kind)}, "gpu": {IntValue: p(int64(d.gpu))}},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: q(d.mem)}, "shares": {Value: q(d.places)}, "other": {Value: q(7)}}}
		if d.mode != "" {
			x.AllowMultipleAllocations = p(true)
			m, s := x.Capacity["memory"], x.Capacity["shares"]
			x.Capacity["other"] = resourceapi.DeviceCapacity{Value: q(7), RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: p(q(0))}}
			s.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: p(q(0))}
			m.RequestPolicy = rng(0, 0, d.mem)
			if d.mode == "memory" {
				m.RequestPolicy = rng(1, 1, d.mem)
			}
			if d.mode == "places" {
				s.RequestPolicy = rng(1, 1, d.places)
			}
			x.Capacity["memory"], x.Capacity["shares"] = m, s
		}
		cc := resourceapi.DeviceCounterConsumption{CounterSet: fmt.Sprintf("g%d", d.gpu), Counters: map[string]resourceapi.Counter{}}
		for _, u := range d.units {
			cc.Counters[fmt.Sprintf("u%d", u)] = resourceapi.Counter{Value: q(1)}
		}
		x.ConsumesCounters = append(x.ConsumesCounters, cc)
		ds.Spec.Devices = append(ds.Spec.Devices, x)
	}
	return []*resourceapi.ResourceSlice{cs, ds}
}

func consumedMap(u use) map[resourceapi.QualifiedName]resource.Quantity {
	return map[resourceapi.QualifiedName]resource.Quantity{"memory": q(u.mem), "shares": q(u.shares), "other": q(0)}
}

func capReq(mem int64) *resourceapi.CapacityRequirements {
	if mem == 0 {
		return nil
	}
	return &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": q(mem)}}
}

func toClaim(i int, c claim) *resourceapi.ResourceClaim {
	rc := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", i), Namespace: "x", UID: types.UID(fmt.Sprintf("c%d", i))}}
	for k, r := range c.reqs {
		dr := resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", k)}
		if len(r.alts) == 1 {
			a := r.alts[0]
			dr.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: a.kind, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(a.count), Capacity: capReq(a.mem)}
		} else {
			for j, a := range r.alts {
				dr.FirstAvailable = append(dr.FirstAvailable, resourceapi.DeviceSubRequest{Name: fmt.Sprintf("s%d", j), DeviceClassName: a.kind, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(a.count), Capacity: capReq(a.mem)})
			}
		}
		rc.Spec.Devices.Requests = append(rc.Spec.Devices.Requests, dr)
	}
	if c.match {
		rc.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: p(resourceapi.FullyQualifiedName("d/gpu"))}}
	}
	return rc
}

func randReq(r *rand.Rand, kinds []string, single bool) req {
	x := req{kind: kinds[r.Intn(len(kinds))], count: 1}
	if !single && r.Intn(6) == 0 {
		x.count = 2
	}
	if r.Intn(3) == 0 {
		x.mem = int64(1 + r.Intn(12))
	}
	return x
}
func randClaims(r *rand.Rand, kinds []string) []claim {
	var out []claim
	for n := 1 + r.Intn(3); n > 0; n-- {
		c := claim{match: r.Intn(4) == 0}
		for m := 1 + r.Intn(2); m > 0; m-- {
			rq := request{alts: []req{randReq(r, kinds, false)}}
			if r.Intn(4) == 0 {
				rq.alts = append(rq.alts, randReq(r, kinds, false))
			}
			c.reqs = append(c.reqs, rq)
		}
		out = append(out, c)
	}
	return out
}

func main() {
	cases, _ := strconv.Atoi(os.Args[1])
	modes := os.Args[2:]
	kinds := []string{"k1", "k2", "k4", "whole", "any", "shared"}
	classes := map[string]*resourceapi.DeviceClass{}
	for _, k := range kinds {
		e := fmt.Sprintf(`device.driver == "d" && device.attributes["d"].kind == "%s"`, k)
		if k == "any" {
			e = `device.driver == "d"`
		}
		if k == "shared" {
			e = `device.driver == "d" && device.allowMultipleAllocations`
		}
		classes[k] = &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: k}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: e}}}}}
	}
	cache := cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})
	var okN, noneN, double, refused, errs int
	firstDouble, firstRefused := "", ""
	singleRefused := 0
	for seed := 0; seed < cases; seed++ {
		r := rand.New(rand.NewSource(int64(seed)))
		gpus := 1 + r.Intn(2)
		var devs []*dev
		modeOf := map[string]string{}
		for _, k := range []string{"k1", "k2", "k4", "whole"} {
			modeOf[k] = modes[r.Intn(len(modes))]
			if modeOf[k] == "none" {
				modeOf[k] = ""
			}
		}
		for g := 0; g < gpus; g++ {
			mk := func(kind string, start, size int) {
				d := &dev{name: fmt.Sprintf("g%d-%s-%d", g, kind, start), kind: kind, gpu: g, mode: modeOf[kind], mem: int64(size * 4)}
				for u := start; u < start+size; u++ {
					d.units = append(d.units, u)
				}
				if d.mode == "places" {
					d.places = 3
				}
				devs = append(devs, d)
			}
			for s := 0; s < 4; s++ {
				mk("k1", s, 1)
			}
			mk("k2", 0, 2)
			mk("k2", 2, 2)
			mk("k4", 0, 4)
			mk("whole", 0, 4)
		}
		// What is in use comes from the search, not from the allocator, and goes through the collection of
		// consumed capacities as in the scheduler.
		st := newState()
		var held []use
		caps := structured.NewConsumedCapacityCollection()
		byName := map[string]*dev{}
		for _, d := range devs {
			byName[d.name] = d
		}
		for n := r.Intn(4); n > 0; n-- {
			s := &search{devs: devs, claims: randClaims(r, kinds)[:1], st: st}
			if s.solve(0, 0, -1, 0, 0, -1) {
				for _, u := range s.got {
					held = append(held, u)
					if u.d.mode != "" {
						caps.Insert(structured.NewDeviceConsumedCapacity(structured.MakeDeviceID(drv, node, u.d.name), consumedMap(u)))
					}
				}
			}
		}
		for i := 0; i < len(held); {
			if r.Intn(4) == 0 {
				u := held[i]
				st.del(u)
				if u.d.mode != "" {
					caps.Remove(structured.NewDeviceConsumedCapacity(structured.MakeDeviceID(drv, node, u.d.name), consumedMap(u)))
				}
				held = append(held[:i], held[i+1:]...)
			} else {
				i++
			}
		}
		as := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: caps}
		for i, u := range held {
			id := structured.MakeDeviceID(drv, node, u.d.name)
			if u.d.mode == "" {
				as.AllocatedDevices.Insert(id)
			} else {
				as.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, p(types.UID(fmt.Sprintf("s%d", i)))))
			}
		}
		claims := randClaims(r, kinds)
		s := &search{devs: devs, claims: claims, st: st}
		possible := s.solve(0, 0, -1, 0, 0, -1)
		if possible { // undo
			for i := len(s.got) - 1; i >= 0; i-- {
				st.del(s.got[i])
			}
		}
		var rcs []*resourceapi.ResourceClaim
		for i, c := range claims {
			rcs = append(rcs, toClaim(i, c))
		}
		a, err := structured.NewAllocator(context.Background(), structured.Features{AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true, ConsumableCapacity: true}, as, lister{classes}, slices(devs, gpus, 4), cache)
		if err != nil {
			panic(err)
		}
		res, err := a.Allocate(context.Background(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, rcs)
		if err != nil {
			errs++
			if errs < 4 {
				fmt.Println("error", seed, err)
			}
			continue
		}
		desc := func() string {
			t := fmt.Sprintf("seed %d gpus %d modes %v held:", seed, gpus, modeOf)
			for _, u := range held {
				t += fmt.Sprintf(" %s(m%d,s%d)", u.d.name, u.mem, u.shares)
			}
			t += fmt.Sprintf(" claims %+v", claims)
			for i, x := range res {
				for _, dr := range x.Devices.Results {
					t += fmt.Sprintf(" c%d:%s=%s", i, dr.Request, dr.Device)
				}
			}
			return t
		}
		if res == nil {
			noneN++
			if possible {
				refused++
				if len(claims) == 1 && len(claims[0].reqs) == 1 && len(claims[0].reqs[0].alts) == 1 && claims[0].reqs[0].alts[0].count == 1 {
					singleRefused++
				}
				if firstRefused == "" || len(desc()) < len(firstRefused) {
					firstRefused = desc()
				}
			}
			continue
		}
		okN++
		bad := !possible
		for _, x := range res {
			for _, dr := range x.Devices.Results {
				u := use{d: byName[dr.Device]}
				if u.d.mode != "" {
					m, sh := dr.ConsumedCapacity["memory"], dr.ConsumedCapacity["shares"]
					u.mem, u.shares = m.Value(), sh.Value()
				}
				if (u.d.mode != "") != (dr.ShareID != nil) || !st.add(u) {
					bad = true
				}
			}
		}
		if bad {
			double++
			if firstDouble == "" || len(desc()) < len(firstDouble) {
				firstDouble = desc()
			}
		}
	}
	fmt.Printf("modes %v: allocated %d, none %d, DOUBLE %d, FALSE REFUSAL %d (of a single request: %d), errors %d\n", modes, okN, noneN, double, refused, singleRefused, errs)
	if firstDouble != "" {
		fmt.Println("  double:", firstDouble)
	}
	if firstRefused != "" {
		fmt.Println("  refused:", firstRefused)
	}
}
